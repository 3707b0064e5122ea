// What the test of 03_shim calls of the piece.
#include "piece.cuh"

PIECE(uint64_t, nvshmemi_get_p2p_ptr, (uint64_t ptr, int rank, int peer), nvshmemi_get_p2p_ptr(ptr, rank, peer))
PIECE(void, nvshmemi_ibgda_put_nbi_warp,
      (uint64_t target, uint64_t source, size_t bytes, int peer, int qp, int lane, int message),
      nvshmemi_ibgda_put_nbi_warp(target, source, bytes, peer, qp, lane, message))
PIECE(void, nvshmemi_ibgda_amo_nonfetch_add, (void* counter, int value, int peer, int qp, bool is_local_copy),
      nvshmemi_ibgda_amo_nonfetch_add(counter, value, peer, qp, is_local_copy))
