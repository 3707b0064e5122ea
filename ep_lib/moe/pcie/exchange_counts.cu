// The start of every operation in PCIe mode: a barrier of all ranks, through the NIC, in which they also exchange tags,
// and before a dispatch how many rows each sends.
//
// Each rank puts one message into every other's inbox, with its signal. Inbox, outbox and signals are there twice, for
// even and odd epochs, and that is enough: a rank that is two epochs ahead has been through the exchange in between,
// which its peer entered after it had read the older message. For the same reason the outbox may be written again
// without a quiet: the peer has seen the older message, so the NIC has read it.
#include <moe/pcie/rings.cuh>

namespace ep::pcie {

// The head of a message. int counts[channels + 1 + experts_per_rank] follow it: how many rows the sender has for the
// receiver before each channel and in all, and its choices of each of the receiver's experts.
struct Message {
    uint64_t tag;  // must be the same on all ranks; the host compares
};

struct ExchangeArgs {
    char* inbox;        // symmetric [2, ranks, message_bytes]: by the epoch's slot of the double buffer and by source
    char* outbox;       // symmetric [2, ranks, message_bytes]: by destination
    uint64_t* signals;  // symmetric [2, ranks]: the epoch that each source is in
    uint64_t epoch;     // the same on all ranks
    uint64_t tag;
    int message_bytes;
    int channels;
    int num_tokens;
    int experts_per_rank;
    int with_counts;  // 1: the message has counts. The same on ranks with the same tag
};

EP_DEVICE int* counts_of(char* message) { return reinterpret_cast<int*>(message + sizeof(Message)); }

// One block. With counts, from <moe/common/layout.cuh>: send_index [num_tokens, ranks], rank_counts [ranks],
// expert_counts [experts].
//   tags   out [ranks]   what each rank passed; the rest is valid only if all are equal
//   plan   out: sends[ranks, channels + 1]      rows to each destination before each channel, and in all
//               receives[ranks, channels + 1]   rows from each source, likewise
//               first_row[ranks]                where each source's rows begin here
//               tokens[experts_per_rank]        choices of each of this rank's experts, by all ranks
EP_DEVICE void exchange_counts(const ExchangeArgs& args, const int* send_index, const int* rank_counts,
                               const int* expert_counts, uint64_t* tags, int* plan) {
    if (block_has_fault()) return;
    const int me = rank(), ranks = num_ranks(), thread = thread_in_block(), num_threads = threads_in_block();
    const int columns = args.channels + 1, half = static_cast<int>(args.epoch % 2);  // of the double buffer
    char* const inbox = args.inbox + static_cast<size_t>(half) * ranks * args.message_bytes;
    char* const outbox = args.outbox + static_cast<size_t>(half) * ranks * args.message_bytes;
    uint64_t* const signals = args.signals + half * ranks;
    const auto message = [&](char* box, int other) { return box + static_cast<size_t>(other) * args.message_bytes; };
    int* const sends = plan;
    int* const receives = sends + ranks * columns;

    if (args.with_counts) {
        for (int i = warp_id(); i < ranks * columns; i += warps_in_block()) {
            const int peer = i / columns, channel = i % columns;
            const int begin = channel_begin(args.num_tokens, channel, args.channels);
            const int rows = rows_before_warp(begin, args.num_tokens, send_index + peer, ranks, rank_counts[peer]);
            if (lane_id() == 0) sends[i] = counts_of(message(outbox, peer))[channel] = rows;
        }
        for (int i = thread; i < ranks * args.experts_per_rank; i += num_threads) {
            const int peer = i / args.experts_per_rank, expert = i % args.experts_per_rank;
            counts_of(message(outbox, peer))[columns + expert] = expert_counts[i];
        }
    }
    for (int peer = thread; peer < ranks; peer += num_threads) {
        reinterpret_cast<Message*>(message(outbox, peer))->tag = args.tag;
    }
    __syncthreads();

    const size_t bytes = args.with_counts ? args.message_bytes : sizeof(Message);
    for (int peer = thread; peer < ranks; peer += num_threads) {
        if (peer == me) continue;
        net_put_signal_nbi(message(inbox, me), message(outbox, peer), bytes, signals + me, args.epoch, peer, 0,
                           NetSignal::kSet);
    }
    int failed = 0;
    for (int peer = thread; peer < ranks; peer += num_threads) {
        if (peer != me) failed |= !wait_until_ge(signals + peer, args.epoch, {kPhaseLayout, peer, -1});
    }
    if (__syncthreads_or(failed)) return;

    const auto received = [&](int source) { return message(source == me ? outbox : inbox, source); };
    int differs = 0;
    for (int source = thread; source < ranks; source += num_threads) {
        tags[source] = reinterpret_cast<const Message*>(received(source))->tag;
        differs |= tags[source] != args.tag;
    }
    if (__syncthreads_or(differs) || !args.with_counts) return;

    for (int i = thread; i < ranks * columns; i += num_threads) {
        receives[i] = counts_of(received(i / columns))[i % columns];
    }
    int* const first_row = receives + ranks * columns;
    for (int source = thread; source < ranks; source += num_threads) {
        int rows = 0;
        for (int before = 0; before < source; ++before) rows += counts_of(received(before))[args.channels];
        first_row[source] = rows;
    }
    int* const tokens = first_row + ranks;
    for (int e = thread; e < args.experts_per_rank; e += num_threads) {
        int choices = 0;
        for (int source = 0; source < ranks; ++source) choices += counts_of(received(source))[columns + e];
        tokens[e] = choices;
    }
}

}  // namespace ep::pcie

extern "C" __global__ void ep_pcie_exchange_counts(ep::pcie::ExchangeArgs args, const int* send_index,
                                                   const int* rank_counts, const int* expert_counts, uint64_t* tags,
                                                   int* plan) {
    ep::pcie::exchange_counts(args, send_index, rank_counts, expert_counts, tags, plan);
}

// Waits until everything that this rank has posted is done, before its memory is freed.
extern "C" __global__ void ep_pcie_finish() {
    if (threadIdx.x == 0) ep::net_quiet();
}
