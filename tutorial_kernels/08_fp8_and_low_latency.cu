// Few tokens, and every microsecond counts: FP8 rows, packets, one row per rank, sums before the way back. A ladder.
//
//     sender                                              receiver
//     expert ids of every token, in packets       --->    [ ids ]      who will come?
//     one row per rank, cast to FP8 on its way    --->    [ slots ]
//     one flag per row, with release              --->    [ flags ]    waits, copies the row to its experts
//     waits, adds up                              <---    the experts' weighted sum, ONE row per (token, rank)
//
// All arrays but x, topk_idx, weights and out are symmetric. A row has `hidden` elements, a multiple of 128; in bfloat16
// it is hidden / 8 vectors of 16 bytes. One warp does all the work here, one token after the other.
//
// Rung  Kernel                              Idea
// 0     send_bf16, receive_bf16             a row and its flag: notebook 01, with one flag per row
// 1     send_fp8_one_scale, receive_fp8     half the bytes; one scale for everything
// 2     send_fp8                            a scale for each 128 elements
// 3     ping_pong_flag, ping_pong_packets   data and signal in one store
// 4     dispatch_to_experts                 a row for each expert
// 5     dispatch_to_ranks                   a row for each rank, copied to its experts there
// 6     combine_sums                        what came from one rank goes back as one row
// 7     exchange_rounds                     round after round: a double buffer
//
// 08_fp8_and_low_latency_broken.cu has what goes wrong.
#include <ep/fp8.cuh>
#include <ep/packet.cuh>
#include <ep/signal.cuh>

#include "08_fp8_and_low_latency.cuh"

// ---- Rung 0: a bfloat16 row -----------------------------------------------------------------------------------------
// x [tokens, hidden] goes to slots [tokens, slot_vectors] at the peer.
extern "C" __global__ void send_bf16(int4* slots, int slot_vectors, uint64_t* flags, const int4* x, int tokens,
                                     int hidden, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < tokens; ++token) {
        copy_row(ep::peer_ptr(slots + token * slot_vectors, peer), x + token * hidden / 8, hidden / 8);
        __syncwarp();  // data, then signal
        if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(flags + token, peer), 1);
    }
}

extern "C" __global__ void receive_bf16(const int4* slots, int slot_vectors, const uint64_t* flags, float* out,
                                        int tokens, int hidden, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < tokens; ++token) {
        if (!ep::wait_until_ge_warp(flags + token, 1, {ep::kPhaseDispatch, peer, token})) return;
        const int4* const slot = slots + token * slot_vectors;
        for (int i = ep::lane_id(); i < hidden / 8; i += ep::kWarpSize) {
            ep::bfloat16_to_float(ep::ld_na_v4(slot + i), out + token * hidden + 8 * i);
        }
    }
}

// ---- Rung 1: FP8, one scale for all ---------------------------------------------------------------------------------
// One byte per element: half as much on the wire. E4M3 reaches from 0.002 to 448, so numbers are divided by a scale before,
// and multiplied by it afterwards. Here the host found one for the whole batch. A slot: the bytes, then the scales.
extern "C" __global__ void send_fp8_one_scale(int4* slots, int slot_vectors, uint64_t* flags, const int4* x, int tokens,
                                              int hidden, float scale, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < tokens; ++token) {
        char* const slot = reinterpret_cast<char*>(ep::peer_ptr(slots + token * slot_vectors, peer));
        for (int i = ep::lane_id(); i < hidden / 8; i += ep::kWarpSize) {
            float v[8];
            ep::bfloat16_to_float(x[token * hidden / 8 + i], v);
            for (int j = 0; j < 8; j += 2) {
                *reinterpret_cast<uint16_t*>(slot + 8 * i + j) = ep::fp8_pair(v[j], v[j + 1], scale);
            }
        }
        for (int g = ep::lane_id(); g < hidden / ep::kFp8Group; g += ep::kWarpSize) scales_of(slot, hidden)[g] = scale;
        __syncwarp();
        if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(flags + token, peer), 1);
    }
}

extern "C" __global__ void receive_fp8(const int4* slots, int slot_vectors, const uint64_t* flags, float* out,
                                       int tokens, int hidden, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < tokens; ++token) {
        if (!ep::wait_until_ge_warp(flags + token, 1, {ep::kPhaseDispatch, peer, token})) return;
        read_fp8_row(reinterpret_cast<const char*>(slots + token * slot_vectors), hidden, out + token * hidden);
    }
}

// ---- Rung 2: a scale for each 128 elements --------------------------------------------------------------------------
// An outlier spoils the 127 numbers beside it, and no others. The scales are 3 % of the row. The cast happens on the way:
// from the registers straight into the peer's slot. quantize_row_warp is the last task of exercise 08_fp8.
extern "C" __global__ void send_fp8(int4* slots, int slot_vectors, uint64_t* flags, const int4* x, int tokens,
                                    int hidden, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < tokens; ++token) {
        int4* const slot = ep::peer_ptr(slots + token * slot_vectors, peer);
        ep::quantize_row_warp(x + token * hidden / 8, slot, scales_of(slot, hidden), hidden);
        __syncwarp();
        if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(flags + token, peer), 1);
    }
}

// ---- Rung 3: data and signal in one store ---------------------------------------------------------------------------
// There and back, `rounds` times: rank 0 begins. `words` 64-bit words and a flag behind them. The release waits until the
// words have arrived and been acknowledged: a whole round trip over the link before the flag may leave.
extern "C" __global__ void ping_pong_flag(uint64_t* inbox, uint64_t* flag, const uint64_t* source, uint64_t* out,
                                          int words, int rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int round = 0; round < rounds; ++round) {
        for (int half = 0; half < 2; ++half) {
            if (half == ep::rank() % 2) {
                copy_words(ep::peer_ptr(inbox, peer), source + round * words, words);
                __syncwarp();
                if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(flag, peer), round + 1);
            } else {
                if (!ep::wait_until_ge_warp(flag, round + 1, {ep::kPhaseSignal, peer, round})) return;
                copy_words(out + round * words, inbox, words);
            }
        }
        __syncwarp();
    }
}

// The same in packets of <ep/packet.cuh>: 8 bytes of data and a tag, written by ONE store of 16 bytes (.b128 in PTX, not
// the vector .v2.b64, which is two), so that they arrive as a whole. Nothing has to be ordered, so nothing waits. The
// price: half of the bytes are tags. And the tag must be one that this place has not held: the number of the round.
extern "C" __global__ void ping_pong_packets(ep::TaggedWord* inbox, const uint64_t* source, uint64_t* out, int words,
                                             int rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int round = 0; round < rounds; ++round) {
        const ep::WaitInfo info = {ep::kPhaseSignal, peer, round};
        for (int half = 0; half < 2; ++half) {
            if (half == ep::rank() % 2) {
                ep::send_packets_warp(inbox, source + round * words, words, round + 1, peer);
            } else if (!ep::wait_packets_warp(inbox, out + round * words, words, round + 1, info)) {
                return;
            }
        }
    }
}

// Rungs 4 and 5: casts a row into slot `at` of rank `to`, and sets its flag.
EP_DEVICE void send_row(const Batch& batch, const int4* row, int at, int to, int* sent) {
    int4* const slot = ep::peer_ptr(batch.slots + at * batch.slot_vectors(), to);
    ep::quantize_row_warp(row, slot, scales_of(slot, batch.hidden), batch.hidden);
    __syncwarp();
    if (ep::lane_id() == 0) {
        ep::st_release_sys_u64(ep::peer_ptr(batch.flags + at, to), 1);
        ++sent[to];
    }
}

// ---- Rung 4: a row for each expert ----------------------------------------------------------------------------------
// First the ids of every token go to all ranks, in packets: so a receiver knows what to wait for. Then the row, once for
// each of the token's experts, to that expert's slot (expert, source rank, token). `sent` [ranks] counts rows.
extern "C" __global__ void dispatch_to_experts(Batch batch, const int4* x, const int* topk_idx, int* sent) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < batch.tokens; ++token) {
        send_ids(batch, topk_idx, token);
        for (int k = 0; k < batch.top_k; ++k) {
            const int expert = topk_idx[token * batch.top_k + k], to = expert / batch.experts_per_rank;
            const int at = place_of(batch, expert % batch.experts_per_rank, ep::rank(), token);
            send_row(batch, x + token * batch.hidden / 8, at, to, sent);
        }
    }
}

// out [experts_per_rank, ranks, tokens, hidden]: the row of every token that chose one of this rank's experts.
extern "C" __global__ void receive_at_experts(Batch batch, float* out) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int i = 0; i < ep::num_ranks() * batch.tokens; ++i) {
        const int source = i / batch.tokens, token = i % batch.tokens;
        uint64_t ids;
        if (!wait_ids(batch, source, token, &ids)) return;
        for (int k = 0; k < batch.top_k; ++k) {
            const int expert = own_expert(batch, ids, k);
            if (expert < 0) continue;
            const int at = place_of(batch, expert, source, token);
            if (!ep::wait_until_ge_warp(batch.flags + at, 1, {ep::kPhaseDispatch, source, token})) return;
            read_fp8_row(reinterpret_cast<const char*>(batch.slots + at * batch.slot_vectors()), batch.hidden,
                         out + static_cast<int64_t>(at) * batch.hidden);
        }
    }
}

// ---- Rung 5: a row for each rank ------------------------------------------------------------------------------------
// Experts of one rank share its memory. So the row crosses once, to slot (source rank, token), and is copied there.
extern "C" __global__ void dispatch_to_ranks(Batch batch, const int4* x, const int* topk_idx, int* sent) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int token = 0; token < batch.tokens; ++token) {
        const uint64_t ids = send_ids(batch, topk_idx, token);
        const int at = place_of(batch, 0, ep::rank(), token);
        for (int to = 0; to < ep::num_ranks(); ++to) {
            if (!goes_to(batch, ids, to)) continue;
            send_row(batch, x + token * batch.hidden / 8, at, to, sent);
        }
    }
}

extern "C" __global__ void receive_and_scatter(Batch batch, float* out) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int i = 0; i < ep::num_ranks() * batch.tokens; ++i) {
        const int source = i / batch.tokens, token = i % batch.tokens;
        uint64_t ids;
        if (!wait_ids(batch, source, token, &ids)) return;
        if (!goes_to(batch, ids, ep::rank())) continue;
        const int at = place_of(batch, 0, source, token);
        if (!ep::wait_until_ge_warp(batch.flags + at, 1, {ep::kPhaseDispatch, source, token})) return;
        const char* const slot = reinterpret_cast<const char*>(batch.slots + at * batch.slot_vectors());
        for (int k = 0; k < batch.top_k; ++k) {
            const int expert = own_expert(batch, ids, k);
            if (expert < 0) continue;
            read_fp8_row(slot, batch.hidden, out + place_of(batch, expert, source, token) * int64_t(batch.hidden));
        }
    }
}

// ---- Rung 6: add up before the way back -----------------------------------------------------------------------------
// A token's result is a weighted sum over its experts, so those of one rank can be added there: ONE row goes back, to
// slot (that rank, token) of the owner. The weights are the owner's: they come in packets, each to the rank whose expert
// it is for. `y` is what this rank's experts made of `out`; `sums` [ranks, tokens, hidden] and `flags` [ranks, tokens].

EP_DEVICE void send_weights(const Batch& batch, ep::TaggedWord* packets, const int* topk_idx, const float* weights) {
    for (int i = ep::lane_id(); i < batch.tokens * batch.top_k; i += ep::kWarpSize) {
        const uint64_t bits = static_cast<unsigned>(__float_as_int(weights[i]));
        ep::TaggedWord* const packet = packets + ep::rank() * batch.tokens * batch.top_k + i;
        ep::send_packet(packet, bits, 1, topk_idx[i] / batch.experts_per_rank);
    }
}

// Lane k waits for the weight of the token's k-th expert, if that is one of this rank.
EP_DEVICE bool wait_weights(const Batch& batch, const ep::TaggedWord* packets, int owner, int token, uint64_t ids,
                            float* weight) {
    const int k = ep::lane_id();
    uint64_t bits = 0;
    const bool mine = k < batch.top_k && own_expert(batch, ids, k) >= 0;
    const ep::TaggedWord* const packet = packets + (owner * batch.tokens + token) * batch.top_k + k;
    const bool ok = !mine || ep::wait_packet(packet, 1, &bits, {ep::kPhaseCombine, owner, token});
    *weight = __int_as_float(static_cast<int>(bits));
    return __all_sync(ep::kFullWarp, ok);
}

EP_DEVICE bool send_sums(const Batch& batch, const float* y, const ep::TaggedWord* packets, float* sums,
                         uint64_t* flags) {
    const int64_t lane = ep::lane_id(), me = ep::rank(), hidden = batch.hidden;
    for (int i = 0; i < ep::num_ranks() * batch.tokens; ++i) {  // tokens of all ranks that were here
        const int owner = i / batch.tokens, token = i % batch.tokens;
        uint64_t ids;
        float of_lane;
        if (!wait_ids(batch, owner, token, &ids)) return false;
        if (!goes_to(batch, ids, me)) continue;
        if (!wait_weights(batch, packets, owner, token, ids, &of_lane)) return false;
        float* const sum = ep::peer_ptr(sums + (me * batch.tokens + token) * hidden, owner);
        for (int64_t h = lane; h < hidden; h += ep::kWarpSize) {  // a multiple of 128: all lanes take part
            float total = 0.0f;
            for (int k = 0; k < batch.top_k; ++k) {
                const float weight = __shfl_sync(ep::kFullWarp, of_lane, k);
                const int expert = own_expert(batch, ids, k);
                if (expert >= 0) total += weight * y[place_of(batch, expert, owner, token) * hidden + h];
            }
            sum[h] = total;
        }
        __syncwarp();
        if (lane == 0) ep::st_release_sys_u64(ep::peer_ptr(flags + me * batch.tokens + token, owner), 1);
    }
    return true;
}

// The sums that come back for this rank's own tokens.
EP_DEVICE void add_sums(const Batch& batch, const float* sums, const uint64_t* flags, const int* topk_idx,
                        float* result) {
    const int lane = ep::lane_id(), hidden = batch.hidden;
    for (int token = 0; token < batch.tokens; ++token) {
        const uint64_t ids = pack_ids(batch, topk_idx, token);
        for (int i = lane; i < hidden; i += ep::kWarpSize) result[token * hidden + i] = 0.0f;
        for (int from = 0; from < ep::num_ranks(); ++from) {  // in the order of ranks: the same bits on every run
            if (!goes_to(batch, ids, from)) continue;
            const int at = from * batch.tokens + token;
            if (!ep::wait_until_ge_warp(flags + at, 1, {ep::kPhaseCombine, from, token})) return;
            const float* const sum = sums + static_cast<int64_t>(at) * hidden;
            for (int i = lane; i < hidden; i += ep::kWarpSize) result[token * hidden + i] += sum[i];
        }
    }
}

extern "C" __global__ void combine_sums(Batch batch, const float* y, ep::TaggedWord* weight_packets, float* sums,
                                        uint64_t* flags, const int* topk_idx, const float* weights, float* result) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    send_weights(batch, weight_packets, topk_idx, weights);
    if (send_sums(batch, y, weight_packets, sums, flags)) add_sums(batch, sums, flags, topk_idx, result);
}

// ---- Rung 7: round after round --------------------------------------------------------------------------------------
// Each round both ranks write into each other's inbox [buffers, words] and read their own. With two buffers no credit is
// needed: I write buffer 0 again in round 2, after I have read your round 1. You sent that after you had read round 0.
extern "C" __global__ void exchange_rounds(uint64_t* inbox, int buffers, uint64_t* flag, const uint64_t* source,
                                           uint64_t* out, int words, int rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int round = 0; round < rounds; ++round) {
        uint64_t* const box = inbox + round % buffers * words;
        uint64_t* const theirs = ep::peer_ptr(box, peer);
        for (int i = ep::lane_id(); i < words; i += ep::kWarpSize) theirs[i] = source[round * words + i];
        __syncwarp();
        if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(flag, peer), round + 1);
        if (!ep::wait_until_ge_warp(flag, round + 1, {ep::kPhaseSignal, peer, round})) return;
        for (int i = ep::lane_id(); i < words; i += ep::kWarpSize) out[round * words + i] = box[i];
        __syncwarp();  // all lanes have read, before lane 0's next signal says so
    }
}
