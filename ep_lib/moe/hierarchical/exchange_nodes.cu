// Before a dispatch, beside the counts that all ranks exchange (<moe/pcie/exchange_counts.cu>): partners tell each other
// how many tokens they send to each other's node, and the ranks of a node where each source's rows begin on them. After
// it, every rank knows where each row that goes through it belongs.
#include <moe/hierarchical/nodes.cuh>

namespace ep::hierarchical {

struct ExchangeNodesArgs {
    Rings rings;
    char* inbox;             // symmetric [nodes, message_bytes]: by source
    char* outbox;            // symmetric [nodes, message_bytes]: by destination
    uint64_t* signals;       // symmetric [nodes]: the epoch of the partner in that node
    int* tables;             // symmetric [ranks of the node, ranks]: where each source's rows begin there
    uint64_t* node_signals;  // symmetric, see node_barrier
    uint64_t epoch;
    int message_bytes;  // room for int rows[channels + 1]: to the receiver's node before each channel, and in all
    int num_tokens;
};

// One block.
//   node_index  [num_tokens, nodes]   how many earlier tokens of mine go to that node, or -1
//   node_counts [nodes]               tokens that go to each node
//   first_row   [ranks]               where each source's rows begin here
//   plan        out: sends[nodes, channels + 1]     tokens to each node before each channel, and in all
//                    receives[nodes, channels + 1]  tokens from the partner in each node, likewise
//                    first_forward[nodes]           the first token of each partner among the tokens from all partners
//                    first_rows[ranks of the node, ranks]   the tables
EP_DEVICE void exchange_nodes(const ExchangeNodesArgs& args, const int* node_index, const int* node_counts,
                              const int* first_row, int* plan) {
    if (block_has_fault()) return;
    const int nodes = num_nodes(args.rings), mates = ranks_per_node(args.rings), ranks = num_ranks();
    const int me = rank(), here = node_of(args.rings, me), first = first_rank_of_node(args.rings);
    const int columns = args.rings.channels + 1, thread = thread_in_block(), num_threads = threads_in_block();
    const auto message = [&](char* box, int node) {
        return reinterpret_cast<int*>(box + static_cast<size_t>(node) * args.message_bytes);
    };
    int* const sends = plan;
    int* const receives = sends + nodes * columns;
    int* const first_forward = receives + nodes * columns;
    int* const first_rows = first_forward + nodes;

    for (int i = warp_id(); i < nodes * columns; i += warps_in_block()) {
        const int node = i / columns, channel = i % columns;
        const int begin = channel_begin(args.num_tokens, channel, args.rings.channels);
        const int rows = rows_before_warp(begin, args.num_tokens, node_index + node, nodes, node_counts[node]);
        if (lane_id() == 0) sends[i] = message(args.outbox, node)[channel] = rows;
    }
    for (int i = thread; i < mates * ranks; i += num_threads) {
        const int mate = i / ranks, source = i % ranks;
        peer_ptr(args.tables, first + mate)[(me - first) * ranks + source] = first_row[source];
    }
    __syncthreads();

    for (int node = thread; node < nodes; node += num_threads) {
        if (node == here) continue;
        net_put_signal_nbi(message(args.inbox, here), message(args.outbox, node), args.message_bytes,
                           args.signals + here, args.epoch, node * mates + me - first, 0, NetSignal::kSet);
    }
    if (!node_barrier(args.node_signals, mates, kNodeTables, args.epoch, kPhaseLayout)) return;
    int failed = 0;
    for (int node = thread; node < nodes; node += num_threads) {
        const WaitInfo partner = {kPhaseLayout, node * mates + me - first, -1};
        if (node != here) failed |= !wait_until_ge(args.signals + node, args.epoch, partner);
    }
    if (__syncthreads_or(failed)) return;

    const auto received = [&](int node) { return message(node == here ? args.outbox : args.inbox, node); };
    for (int i = thread; i < nodes * columns; i += num_threads) receives[i] = received(i / columns)[i % columns];
    for (int node = thread; node < nodes; node += num_threads) {
        int tokens = 0;
        for (int before = 0; before < node; ++before) {
            if (before != here) tokens += received(before)[args.rings.channels];
        }
        first_forward[node] = tokens;
    }
    for (int i = thread; i < mates * ranks; i += num_threads) first_rows[i] = args.tables[i];
}

}  // namespace ep::hierarchical

// Launched like <moe/common/layout.cu>, with nodes in place of ranks.
extern "C" __global__ void ep_hierarchical_layout(ep::LayoutArgs args, const int* topk_idx, int* node_index,
                                                  int* node_counts, int* expert_counts, int nodes) {
    ep::get_dispatch_layout(args, topk_idx, node_index, node_counts, expert_counts, nodes);
}

extern "C" __global__ void ep_hierarchical_exchange_nodes(ep::hierarchical::ExchangeNodesArgs args,
                                                          const int* node_index, const int* node_counts,
                                                          const int* first_row, int* plan) {
    ep::hierarchical::exchange_nodes(args, node_index, node_counts, first_row, plan);
}

// One block, behind a dispatch: all rows of this node are there.
extern "C" __global__ void ep_hierarchical_stored(uint64_t* node_signals, int ranks_of_node, uint64_t epoch) {
    using namespace ep::hierarchical;
    if (!ep::block_has_fault()) node_barrier(node_signals, ranks_of_node, kNodeStored, epoch, ep::kPhaseDispatch);
}

// One block, before a combine and behind the kernels that put this rank's rows where its node reads them.
extern "C" __global__ void ep_hierarchical_staged(uint64_t* node_signals, int ranks_of_node, uint64_t epoch) {
    using namespace ep::hierarchical;
    if (!ep::block_has_fault()) node_barrier(node_signals, ranks_of_node, kNodeStaged, epoch, ep::kPhaseCombine);
}
