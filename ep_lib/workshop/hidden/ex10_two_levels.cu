// The other half of every test of exercise 10_two_levels: nodes of ranks, with the learner's functions as a part. All
// other code is the grader's own.
#include <calls/ex10_two_levels.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex10_two_levels.py sets others than these defaults (job_of).
struct Job {
    int64_t count = 5, words = 40, mates = 2;
    int64_t delay = 0;    // how often the grader's sender lets others run before each message
    int64_t missing = 0;  // 1: the first message of the second node's first rank is never sent
};

struct Memory {
    uint64_t* signals;
    float* out;
    uint64_t* noted;
};

// A message for each token and other node, by the grader.
EP_DEVICE void send_all(const Job& job, const Tokens& t, const Relay& relay) {
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        int64_t slot = int64_t(here) * t.count;
        for (int token = 0; node != here && token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (!wanted) continue;
            let_others_run(job.delay);
            const bool goes = !job.missing || ep::rank() != t.mates || slot != int64_t(here) * t.count;
            if (goes && ep::lane_id() == 0) {
                ep::net_put_signal_nbi(  // role: the sender's message
                    row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float), relay.labels + slot,
                    label_of(token, wanted), partner_in(t, node), 0, ep::NetSignal::kSet);
            }
            ++slot;
        }
    }
}

EP_DEVICE void forward_all(const Tokens& t, const Relay& relay) {
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        for (int64_t k = 0; node != here && k < relay.comes[node]; ++k) {
            const int64_t slot = int64_t(node) * t.count + k;
            uint64_t label = 0;
            while (label == 0)
                label = ep::ld_acquire_sys_u64(relay.labels + slot);  // role: the partner waits for a label
            for (unsigned left = wanted_of(label); left; left &= left - 1) {
                const int to = first_rank_of(t, here) + __ffs(left) - 1;
                const int64_t row = int64_t(partner_in(t, node)) * t.count + token_of(label);
                float* const there = ep::peer_ptr(row_of(t.arrived, t, row), to);
                for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
                    there[i] = row_of(relay.rows, t, slot)[i];  // role: the partner, which hands the row on
                }
            }
        }
    }
}

// Waits until the rows that other nodes' ranks send are there, and reads them all.
EP_DEVICE void look_at_rows(const Tokens& t, const Memory& my) {
    for (int source = 0; source < ep::num_ranks(); ++source) {
        if (node_of(t, source) == node_of(t, ep::rank())) continue;
        while (ep::ld_acquire_sys_u64(t.signals + source) <
               static_cast<uint64_t>(t.expects[source])) {  // role: a wait for rows
        }
        const int64_t begin = int64_t(source) * t.count * t.words;
        for (int64_t i = ep::lane_id(); i < int64_t(t.count) * t.words; i += ep::kWarpSize) {
            if (t.wants[0] != 0) my.out[begin + i] = t.arrived[begin + i];  // role: a rank that reads its rows
        }
    }
}

// Sums each token of every source for which this rank's node has results.
EP_DEVICE void sum_all(const Tokens& t, const Memory& my, const uint64_t* all_wants) {
    for (int source = 0; source < ep::num_ranks(); ++source) {
        for (int token = 0; token < t.count; ++token) {
            const int64_t row = int64_t(source) * t.count + token;
            const unsigned wanted = static_cast<unsigned>(all_wants[row] >> first_rank_of(t, node_of(t, ep::rank()))) &
                                    ((1u << t.mates) - 1);
            if (!wanted) continue;
            float* const sum = row_of(my.out, t, row);
            piece_node_sum_warp(t, sum, source, token, wanted);
            if (ep::lane_id() == 31) {
                for (int i = 0; i < t.words; ++i) {
                    my.noted[0] += sum[i] == 12345.0f;  // role: a lane that reads the whole sum
                }
            }
            __syncwarp();
        }
    }
}

EP_DEVICE void take_sums(const Tokens& t, const Relay& back, const Memory& my) {
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        int64_t slot = int64_t(node) * t.count;
        for (int token = 0; node != here && token < t.count; ++token) {
            if (!wanted_in(t, token, node)) continue;
            while (ep::ld_acquire_sys_u64(back.labels + slot) == 0) {  // role: the source waits for a sum's label
            }
            for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
                row_of(my.out, t, slot)[i] = row_of(back.rows, t, slot)[i];  // role: the source, which reads the sum
            }
            ++slot;
        }
    }
}

}  // namespace

extern "C" __global__ void examine(int task, float* rows, float* arrived, uint64_t* signals, float* relay_rows,
                                   uint64_t* relay_labels, float* back_rows, uint64_t* back_labels, float* staging,
                                   const uint64_t* all_wants, const int* expects, const int* comes, float* out,
                                   uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const int count = static_cast<int>(job.count), words = static_cast<int>(job.words);
    const Tokens t = {all_wants + ep::rank() * count, rows, arrived, signals, expects, count, words,
                      static_cast<int>(job.mates)};
    const Relay relay = {relay_rows, relay_labels, comes}, stage = {staging, nullptr, comes},
                back = {back_rows, back_labels, comes};
    const Memory my = {signals, out, noted};
    const bool first = blockIdx.x == 0;
    if (task == 1) {
        if (first) {
            piece_send_once_per_node(t, relay);
            __syncwarp();
            ep::net_quiet();
        } else if (blockIdx.x == 1) {
            forward_all(t, relay);
        }
    } else if (task == 2) {
        if (blockIdx.x == 2) return job.missing ? void() : look_at_rows(t, my);
        if (first) {
            send_all(job, t, relay);
            ep::net_quiet();
        } else {
            const bool ok = piece_forward_warp(t, relay);
            if (ep::lane_id() == 0 && !ok) noted[1] = 1;
            if (ep::lane_id() == 0 && job.missing) note_fault(noted + 2);
        }
    } else if (task == 3 && first) {
        sum_all(t, my, all_wants);
    } else if (task == 4) {
        if (first) {
            piece_return_sums_warp(t, relay, stage, back);
            __syncwarp();
            ep::net_quiet();
        } else if (blockIdx.x == 1) {
            take_sums(t, back, my);
        }
    }
}
