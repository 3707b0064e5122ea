// The functions of a piece that the test of 07_sums calls, compiled as compilers for GPUs do: a product and a sum
// become one fused multiply-add unless the piece keeps them apart. The emulator does so, too (ep_lib/jit/gxx.py); here
// it does not depend on options. For processors that have the instruction.
#include "piece.cuh"

#include <cuda_bf16.h>

PIECE(float, add_weighted, (float sum, float weight, float value), ep::add_weighted(sum, weight, value))
