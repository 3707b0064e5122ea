#include <09_own_dispatch.cuh>  // the piece of 09_own_dispatch, as its test calls it
#include "ex09_own_dispatch.cuh"
