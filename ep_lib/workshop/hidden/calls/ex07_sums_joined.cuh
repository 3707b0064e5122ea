// What the test of 07_sums calls of a piece whose products and sums are taken as compilers for GPUs do: joined to one fused
// multiply-add wherever nothing keeps them apart, as the emulator has it too (ep_lib/jit/gxx.py); here whatever its options
// say. For processors that have the instruction.
#include "piece.cuh"

#include <cuda_bf16.h>

PIECE(float, add_weighted, (float sum, float weight, float value), ep::add_weighted(sum, weight, value))
