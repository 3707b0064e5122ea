#include <ep/write_signal.cuh>  // the piece of 01_write_signal, as its test calls it
#include "ex01_write_signal.cuh"
