#include <ep/fp8.cuh>  // the piece of 08_fp8, as its test calls it
#include "ex08_fp8.cuh"
