#include <00_first_kernel.cuh>  // the piece of 00_first_kernel, as its test calls it
#include "ex00_first_kernel.cuh"
