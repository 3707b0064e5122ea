// Adding up a token's rows at full speed: what <moe/direct/combine_push.cu> and <moe/direct/combine_pull.cu> share.
//
// TMA (<ep/tma.cuh>) brings pieces of all rows of a token to shared memory while the lanes add up earlier pieces. So
// bytes in flight need no registers, and a few SMs keep many of them. Rows may lie in this GPU's memory or in a peer's.
// Sums are in float32, in ascending order of ranks, and equal those of <moe/common/sums.cuh> bit for bit; or in the
// order of choices.
#pragma once
#include <ep/tma.cuh>
#include <moe/common/sums.cuh>
#include <moe/direct/combine_send.cuh>

namespace ep::direct {

struct AddArgs {
    Bias bias;
    int num_tokens;
    int row_vectors;
    int top_k;
    int experts_per_rank;
    int piece_vectors;  // vectors of a row in a piece
    int most_ranks;     // that a token can go to: the smaller of top_k and ranks
    int stages;         // pieces under way per warp, at least 2
    int by_choice;      // 1: rows are added in the order in which their ranks' last choices stand, as by DeepEP V2
};

constexpr int kOwnShift = 16;  // with packed rows, bits of Piece::found from here: index + 1 of this rank's own row

// A piece of a token, in shared memory, one per stage.
struct Piece {
    int token;  // num_tokens or more: there are no more
    int found;  // the number of its rows
    int begin;  // vectors of the row before this piece
    int count;  // vectors of this piece
};

// Bytes of dynamic shared memory: for each warp its pieces, a Piece, a barrier and the weights for each stage, and a
// RowPtr for each rank.
EP_HOST_DEVICE size_t add_pieces_shared(int warps, int stages, int piece_vectors, int most_ranks) {
    return static_cast<size_t>(warps) * stages * most_ranks * piece_vectors * sizeof(int4);
}
EP_HOST_DEVICE size_t add_records_shared(int warps, int stages, int most_ranks, int ranks) {
    const size_t stage = sizeof(Piece) + sizeof(uint64_t) + most_ranks * sizeof(float);
    return warps * (stages * stage + ranks * sizeof(RowPtr));
}

// One warp's part of that memory.
struct AddMemory {
    int4* pieces;        // [stages, most_ranks, piece_vectors]
    Piece* under_way;    // [stages]
    RowPtr* row_ptrs;    // [ranks]
    uint64_t* barriers;  // [stages]
    float* weights;      // [stages, most_ranks]

    // `all_pieces` and `records` are those of all warps of the block, at multiples of kTmaSharedAlignment and of 16.
    EP_DEVICE AddMemory(const AddArgs& args, int4* all_pieces, void* records) {
        const int warp = warp_id(), warps = warps_in_block();
        const int before = warp * args.stages, stages = warps * args.stages;
        Piece* const all_under_way = static_cast<Piece*>(records);
        RowPtr* const all_row_ptrs = reinterpret_cast<RowPtr*>(all_under_way + stages);
        uint64_t* const all_barriers = reinterpret_cast<uint64_t*>(all_row_ptrs + warps * num_ranks());
        pieces = all_pieces + static_cast<size_t>(before) * args.most_ranks * args.piece_vectors;
        under_way = all_under_way + before;
        row_ptrs = all_row_ptrs + warp * num_ranks();
        barriers = all_barriers + before;
        weights = reinterpret_cast<float*>(all_barriers + stages) + before * args.most_ranks;
    }
};

// The dynamic shared memory of a block that adds up, or sends, or does one after the other.
struct CombineMemory {
    int4* rows;  // of the warps that send; pieces of the warps that add up begin at the same place
    char* send_records;
    AddMemory add;

    EP_DEVICE CombineMemory(int4* memory, const AddArgs& add_args, const SendArgs& send)
        : rows(memory),
          send_records(after_rows(memory, add_args, send)),
          add(add_args, memory, send_records + send_records_shared(send.warps, send.stages)) {}

  private:
    EP_DEVICE static char* after_rows(int4* memory, const AddArgs& add, const SendArgs& send) {
        const size_t rows = send_rows_shared(send.warps, send.stages, add.row_vectors);
        const size_t pieces = add_pieces_shared(warps_in_block(), add.stages, add.piece_vectors, add.most_ranks);
        return reinterpret_cast<char*>(memory) + max(rows, pieces);
    }
};

namespace detail {

// Hands out tokens to one warp on request; loads the next token's number and send_indices in advance. All lanes call
// together and get the same.
class Tokens {
  public:
    EP_DEVICE Tokens(uint32_t* next_token, int num_tokens, const int* send_index)
        : next_token_(next_token), num_tokens_(num_tokens), send_index_(send_index) {
        ask();
        next();
    }

    EP_DEVICE OnItsWay next() {
        const OnItsWay here = on_its_way_;
        on_its_way_.token = static_cast<int>(__shfl_sync(kFullWarp, ahead_, 0));
        if (on_its_way_.token < num_tokens_) {
            ask();
            on_its_way_.send_indices =
                load_per_rank(send_index_ + static_cast<int64_t>(on_its_way_.token) * num_ranks());
        }
        return here;
    }

  private:
    EP_DEVICE void ask() {
        if (lane_id() == 0) ahead_ = atom_add_relaxed_gpu_u32(next_token_, 1);
    }

    uint32_t* const next_token_;
    const int num_tokens_;
    const int* const send_index_;
    uint32_t ahead_ = 0;  // the token after the one on its way; lane 0 knows
    OnItsWay on_its_way_ = {0, {}};
};

// One warp: waits for the signals of all ranks, and returns whether they passed the same tag. With other tags, rows are
// not where this rank would read them. `ok` becomes false if a rank did not come.
EP_DEVICE bool same_tag_warp(const Signals& signals, SignalKind kind, uint64_t tag, bool* ok) {
    bool same = true, here = true;
    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
        const int entry = kind * num_ranks() + r;
        if (signals.leave_out(r)) continue;
        here &= wait_until_ge(signals.flags + entry, signals.epoch, {kPhaseCombine, r, kind});
        same &= here && signals.tags[entry] == tag;
    }
    if (!here) *ok = false;
    return __all_sync(kFullWarp, same) != 0;
}

// The state of a combine at its start, the same in all threads of a block.
struct CombineStart {
    bool is_void;  // the dispatch of `plan` failed
    bool ok;
};
EP_DEVICE CombineStart start_combine(const Workspace& workspace, const AddArgs& args, const int* plan) {
    const bool is_void = plan[3 * num_ranks() + args.experts_per_rank] != 0;
    return {is_void, !operation_is_failing(workspace) && !is_void};
}

// The last block of a combine that failed, or whose ranks passed different tags.
EP_DEVICE void spoil_sums(const AddArgs& args, int4* out) {
    fill_with_nan(out, static_cast<int64_t>(args.num_tokens) * args.row_vectors * sizeof(int4), fillers_of_block());
}

// One warp: out[i] = bias[i] + sum over rows of weight * piece of the row. kPlain: without weights and bias, whose
// instructions would cost more time than 8 SMs have.
template <typename T, bool kPlain>
EP_DEVICE void add_pieces(const int4* pieces, int piece_vectors, const float* weights, const Piece& in,
                          const Bias& bias, int64_t first_vector, int4* out) {
    constexpr int kVectors = 4;  // of one row, all loaded before the first is added: the loads' latency takes the time
#pragma unroll 1
    for (int first = lane_id(); first < in.count; first += kVectors * kWarpSize) {
        Sums<T> sums[kVectors];
        if (!kPlain && bias.first) {
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < in.count) add_bias(sums[u], bias, first_vector + i);
            }
        }
#pragma unroll 1
        for (int p = 0; p < in.found; ++p) {
            int4 vectors[kVectors];  // undefined beyond the piece's end; their sums are not stored
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < in.count) vectors[u] = pieces[p * piece_vectors + i];
            }
            const float weight = kPlain ? 1.0f : weights[p];
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                kPlain ? sums[u].add(vectors[u]) : sums[u].add(vectors[u], weight);
            }
        }
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const int i = first + u * kWarpSize;
            if (i < in.count) st_na_v4(out + i, sums[u].rounded());
        }
    }
}

// The same for rows that came as FP8 (<moe/direct/packed_rows.cuh>), all but the row `own`, which is this GPU's.
template <typename T>
EP_DEVICE void add_packed_pieces(const int4* pieces, int piece_vectors, const float* weights, const Piece& in, int own,
                                 const Bias& bias, int64_t first_vector, int4* out) {
#pragma unroll 1
    for (int first = 0; first < in.count; first += kChunkVectors) {
        const int i = first + 2 * lane_id(), chunk = first / kChunkVectors;
        if (i >= in.count) continue;
        Sums<T> sums[2];
        if (bias.first) {
#pragma unroll
            for (int u = 0; u < 2; ++u) add_bias(sums[u], bias, first_vector + i + u);
        }
#pragma unroll 2
        for (int p = 0; p < in.found; ++p) {
            const int4* const piece = pieces + p * piece_vectors;
            int4 vectors[2];
            if (p == own) {
                vectors[0] = piece[i];
                vectors[1] = piece[i + 1];
            } else {
                unpack_lane(piece + chunk * kPackedChunkVectors, lane_id(), vectors, vectors + 1);
            }
#pragma unroll
            for (int u = 0; u < 2; ++u) sums[u].add(vectors[u], weights[p]);
        }
#pragma unroll
        for (int u = 0; u < 2; ++u) st_na_v4(out + i + u, sums[u].rounded());
    }
}

// All lanes: puts a token's rows, 32 at most, into the order in which their ranks' last ones of its `choices` stand.
EP_DEVICE void order_by_choices(RowPtr* row_ptrs, int found, const int* choices, int top_k, int experts_per_rank) {
    RowPtr row = {};
    int last = -1, place = 0;
    if (lane_id() < found) {
        row = row_ptrs[lane_id()];
        for (int k = 0; k < top_k; ++k) {
            if (choices[k] >= 0 && choices[k] / experts_per_rank == row.rank) last = k;
        }
    }
    for (int p = 0; p < found; ++p) place += __shfl_sync(kFullWarp, last, p) < last;
    __syncwarp();  // all lanes have read their rows
    if (lane_id() < found) row_ptrs[place] = row;
    __syncwarp();
}

// Which of a token's rows is this rank's own; -1: none.
EP_DEVICE int own_row(const RowPtr* row_ptrs, int found) {
    int own = -1;
    for (int p = 0; p < found; ++p) {
        if (row_ptrs[p].rank == rank()) own = p;
    }
    return own;
}

}  // namespace detail

// One warp: adds up tokens until there are no more.
//   out           [num_tokens, row_vectors]
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   next(row_ptrs, &found)  all lanes: waits for the next token's rows, writes their addresses and returns the token;
//                           num_tokens or more if there is none. It calls tma_fence after peers' threads wrote rows.
// kPacked: rows of other ranks are FP8 (<moe/direct/packed_rows.cuh>); pieces are whole chunks then.
template <typename T, bool kPacked = false, typename Next>
EP_DEVICE void add_tokens(const AddArgs& args, const AddMemory& memory, int4* out, const int* topk_idx,
                          const float* topk_weights, const Next& next) {
    const int row_vectors = args.row_vectors, stage_vectors = args.most_ranks * args.piece_vectors;
    const bool is_plain = !topk_weights && !args.bias.first;
    TmaRing ring(memory.barriers, args.stages);
    int token = 0, found = 0, begin = row_vectors;  // of the next piece
    const auto fill = [&](int stage) {
        if (begin == row_vectors && token < args.num_tokens) {
            token = next(memory.row_ptrs, &found);
            if (token < args.num_tokens) {
                begin = 0;
                if (lane_id() == 0) count_piece(kCountCombineRows, found);
                if (args.by_choice) {
                    const int* const choices = topk_idx + static_cast<int64_t>(token) * args.top_k;
                    detail::order_by_choices(memory.row_ptrs, found, choices, args.top_k, args.experts_per_rank);
                }
                if (topk_weights) {
                    for (int p = lane_id(); p < found; p += kWarpSize) {
                        RowPtr& at = memory.row_ptrs[p];
                        at.weight =
                            weight_on(args.top_k, args.experts_per_rank, at.rank, token, topk_idx, topk_weights);
                    }
                    __syncwarp();
                }
            }
        }
        const int count = min(args.piece_vectors, row_vectors - begin);
        if (lane_id() == 0) memory.under_way[stage] = {token, found, begin, count};
        if (token < args.num_tokens) {
            const uint32_t bytes = count * sizeof(int4);
            // In registers for the loops, on the emulator too: `fill` has references to what is outside of it.
            const RowPtr* const row_ptrs = memory.row_ptrs;
            int4* const pieces = memory.pieces + stage * stage_vectors;
            uint64_t* const barrier = memory.barriers + stage;
            const int rows = found, first = begin, piece_vectors = args.piece_vectors;
            for (int p = lane_id(); p < rows; p += kWarpSize) {
                memory.weights[stage * args.most_ranks + p] = row_ptrs[p].weight;
            }
            if constexpr (kPacked) {
                const int own = detail::own_row(row_ptrs, rows), before = packed_vectors(first);
                const uint32_t packed_bytes = packed_vectors(count) * sizeof(int4);
                for (int p = 0; p < rows; ++p) {
                    tma_load(pieces + p * piece_vectors, row_ptrs[p].row + (p == own ? first : before),
                             p == own ? bytes : packed_bytes, barrier);
                }
                tma_arrive(barrier, own < 0 ? rows * packed_bytes : (rows - 1) * packed_bytes + bytes);
                if (lane_id() == 0) memory.under_way[stage].found = rows | (own + 1) << kOwnShift;
            } else {
                for (int p = 0; p < rows; ++p) {
                    tma_load(pieces + p * piece_vectors, row_ptrs[p].row + first, bytes, barrier);
                }
                tma_arrive(barrier, rows * bytes);
            }
            begin += count;
        }
        __syncwarp();
    };
    for (int stage = 0; stage < args.stages; ++stage) fill(stage);
    for (;; ring.next()) {
        const Piece in = memory.under_way[ring.stage];
        if (in.token >= args.num_tokens) break;
        ring.wait();
        const int4* const pieces = memory.pieces + ring.stage * stage_vectors;
        const float* const weights = memory.weights + ring.stage * args.most_ranks;
        const int64_t first_vector = static_cast<int64_t>(in.token) * row_vectors + in.begin;
        if constexpr (kPacked) {
            const Piece piece = {in.token, in.found & ((1 << kOwnShift) - 1), in.begin, in.count};
            detail::add_packed_pieces<T>(pieces, args.piece_vectors, weights, piece, (in.found >> kOwnShift) - 1,
                                         args.bias, first_vector, out + first_vector);
        } else if (is_plain) {
            detail::add_pieces<T, true>(pieces, args.piece_vectors, weights, in, args.bias, first_vector,
                                        out + first_vector);
        } else {
            detail::add_pieces<T, false>(pieces, args.piece_vectors, weights, in, args.bias, first_vector,
                                         out + first_vector);
        }
        __syncwarp();  // all lanes have read the pieces
        fill(ring.stage);
    }
}

}  // namespace ep::direct
