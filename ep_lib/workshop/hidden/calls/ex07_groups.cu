#include <ep/groups.cuh>  // the piece of 07_groups, as its test calls it
#include "ex07_groups.cuh"
