// What the test of 09_own_dispatch calls of the piece.
#include "piece.cuh"
#include <ep/packet.cuh>

namespace given {

// Mirrors the piece's.
struct Dispatch {
    int4* rows;
    uint64_t* arrived;
    ep::TaggedWord* routes;
    int4* out;
    uint64_t *wanted, epoch;
    int num_tokens, max_tokens, row_vectors, top_k, experts_per_rank;
};

}  // namespace given

#ifdef GRADER_PIECE
EP_DEVICE own::Dispatch learners(const given::Dispatch& d) {
    return {d.rows,       d.arrived,    d.routes,      d.out,   d.wanted,          d.epoch,
            d.num_tokens, d.max_tokens, d.row_vectors, d.top_k, d.experts_per_rank};
}
#endif

PIECE(uint64_t, wanted_on, (const given::Dispatch& my, const int* choices, int count, int r),
      own::wanted_on(learners(my), choices, count, r))
PIECE(void, tell_warp, (const given::Dispatch& my, const int* choices, int count, int token),
      own::tell_warp(learners(my), choices, count, token))
PIECE(void, send_row_warp, (const given::Dispatch& my, const int4* row, const int* choices, int count, int token),
      own::send_row_warp(learners(my), row, choices, count, token))
PIECE(bool, receive_warp, (const given::Dispatch& my, int source, int token, uint64_t* bits),
      own::receive_warp(learners(my), source, token, bits))
PIECE(void, dispatch, (const given::Dispatch& my, const int4* x, const int* topk_idx),
      own::dispatch(learners(my), x, topk_idx))
