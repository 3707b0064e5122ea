// What the test of 10_two_levels calls of the piece.
#include "piece.cuh"

#include <10_two_levels.cuh>

PIECE(void, send_once_per_node, (const Tokens& t, const Relay& relay), send_once_per_node(t, relay))
PIECE(bool, forward_warp, (const Tokens& t, const Relay& relay), forward_warp(t, relay))
PIECE(void, node_sum_warp, (const Tokens& t, float* sum, int source, int token, unsigned wanted),
      node_sum_warp(t, sum, source, token, wanted))
PIECE(void, return_sums_warp, (const Tokens& t, const Relay& relay, const Relay& staging, const Relay& back),
      return_sums_warp(t, relay, staging, back))
