// What the test of 06_slots calls of the piece.
#include "piece.cuh"

PIECE(int, votes_below, (bool yes, int* total), ep::votes_below(yes, total))
PIECE(int, sum_of_lower_warps, (int value, int* warp_totals, int* total),
      ep::sum_of_lower_warps(value, warp_totals, total))
PIECE(int, rows_before, (const int* counts, int stride, int source), ep::rows_before(counts, stride, source))
PIECE(int4*, row_at, (int4 * rows, int to, int index, int row_vectors), ep::row_at(rows, to, index, row_vectors))
