// What the test of 08_fp8 calls of the piece.
#include "piece.cuh"

PIECE(float, fp8_group_largest, (const float* values), ep::fp8_group_largest(values))
PIECE(float, fp8_scale, (float largest), ep::fp8_scale(largest))
PIECE(unsigned, fp8_pair, (float first, float second, float scale), ep::fp8_pair(first, second, scale))
PIECE(int4, quantize_fp8, (int4 first, int4 second, float* scale), ep::quantize_fp8(first, second, scale))
PIECE(void, quantize_row_warp, (const int4* row, int4* numbers, float* scales, int hidden),
      ep::quantize_row_warp(row, numbers, scales, hidden))
