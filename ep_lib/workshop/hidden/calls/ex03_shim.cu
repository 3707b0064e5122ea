#include <ep/ibgda_calls.cuh>  // the piece of 03_shim, as its test calls it
#include "ex03_shim.cuh"
