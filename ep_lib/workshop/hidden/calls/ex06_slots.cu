#include <ep/slots.cuh>  // the piece of 06_slots, as its test calls it
#include "ex06_slots.cuh"
