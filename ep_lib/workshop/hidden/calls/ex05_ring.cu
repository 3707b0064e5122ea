#include <ep/ring.cuh>  // the piece of 05_ring, as its test calls it
#include "ex05_ring.cuh"
