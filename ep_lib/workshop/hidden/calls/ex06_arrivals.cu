#include <ep/all_ranks.cuh>  // the piece of 06_arrivals, as its test calls it
#include "ex06_arrivals.cuh"
