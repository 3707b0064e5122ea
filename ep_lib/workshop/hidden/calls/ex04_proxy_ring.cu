#include <ep/proxy_ring.cuh>  // the piece of 04_proxy_ring, as its test calls it
#include "ex04_proxy_ring.cuh"
