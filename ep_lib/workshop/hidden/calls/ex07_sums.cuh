// What the test of 07_sums calls of the piece.
#include "piece.cuh"

PIECE(float, add_weighted, (float sum, float weight, float value), ep::add_weighted(sum, weight, value))
PIECE(float, bfloat16_low, (int word), ep::bfloat16_low(word))
PIECE(float, bfloat16_high, (int word), ep::bfloat16_high(word))
PIECE(int, bfloat16_word, (float low, float high), ep::bfloat16_word(low, high))
PIECE(float, weight_on,
      (int top_k, int experts_per_rank, int rank, int token, const int* topk_idx, const float* weights),
      ep::weight_on(top_k, experts_per_rank, rank, token, topk_idx, weights))
PIECE(void, sums_float, (const int4* rows, int64_t stride, int64_t count, const float* weights, int4* sum),
      void(*sum = sums_of<float>(rows, stride, count, weights)))
PIECE(void, sums_bfloat16, (const int4* rows, int64_t stride, int64_t count, const float* weights, int4* sum),
      void(*sum = sums_of<__nv_bfloat16>(rows, stride, count, weights)))
