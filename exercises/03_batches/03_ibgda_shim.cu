// Exercise 03_batches, version 1. Leave this line: ep_lib reads it.
// IBGDA's calls on a network that keeps no order: what must stand between data and its signal. A ladder.
//
//     sender                             NIC                                      receiver
//     posts "put these bytes there" ---> reads the source, later, in pieces  ---> [ inbox ]
//     posts "add 1 to that counter" ---> on InfiniBand (RC) behind the put   ---> [ arrived ]  sees the counter,
//                                        on EFA (SRD) whenever it likes                        then reads the inbox
//
// All arrays but `out` are symmetric: each rank has its own copy, and a kernel is given *its own* copy's address.
// The host calls ep_lib.ibgda.init_efa_device_state(rank, num_channels, num_devices) first.
//
// Rung  Kernel                              Idea
// 0     put_message                         a put returns before anything has moved; quiet waits
// 1     send_staged, receive_messages       put, quiet, signal: message by message
// 2     send_batched                        all puts, one quiet, one signal
// 3     send_with_signals, receive_each     the NIC itself puts the signal behind the data: no quiet in between
// 4     count_by_source                     staged atomics: a counter has one kind of writer
// 5     channel_send, channel_receive       DeepEP's way of sending, made right on every network
//
// 03_ibgda_shim_broken.cu has the kernel that is right on InfiniBand and wrong on EFA, and other mistakes.
#include <ep/ibgda_shim.cuh>

namespace {

EP_DEVICE uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// The queue pair for a stream of messages: streams spread over all there are.
EP_DEVICE int queue_pair_of(int stream) {
    const auto* state = ibgda_get_state();
    return stream % (state->num_rc_per_pe * state->num_devices_initialized);
}

}  // namespace

// ---- Rung 0: a put --------------------------------------------------------------------------------------------------
// The whole warp calls: to a peer in the same node, 32 lanes copy; to any other, lane 0 hands the NIC one request.
// Either way the call returns early. After quiet the bytes are in the peer's inbox, and the outbox may be reused. The
// peer does not know yet: here the host tells it, by a barrier after this kernel.
extern "C" __global__ void put_message(char* inbox, const char* outbox, size_t bytes, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id(), qp = queue_pair_of(0);
    nvshmemi_ibgda_put_nbi_warp(address(inbox), address(outbox), bytes, peer, qp, lane, 0);
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
}

// ---- Rung 1: put, quiet, signal -------------------------------------------------------------------------------------
// Each message is made in one small `staging` buffer. The quiet serves twice: the data is there before the counter says
// so, and the NIC has read the staging buffer before the next message overwrites it. The first __syncwarp puts what all
// lanes staged before lane 0's post; the last one keeps the lanes out of the buffer until lane 0 is past its quiet.
extern "C" __global__ void send_staged(char* inbox, char* staging, const char* source, size_t bytes, int messages,
                                       uint32_t* arrived, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id(), qp = queue_pair_of(0);
    // TASK 1 (3 points): message by message through one staging buffer
    // For each of `messages` messages: the lanes copy its `bytes` bytes from source + i * bytes into `staging`,
    // the warp puts them to inbox + i * bytes (nvshmemi_ibgda_put_nbi_warp(address(to), address(from), bytes,
    // peer, qp, lane, i)), and lane 0 adds 1 to the peer's `arrived` (nvshmemi_ibgda_amo_nonfetch_add(arrived,
    // 1, peer, qp)).
    // One nvshmemi_ibgda_quiet(peer, qp) per message serves twice: which two things must wait for it? And where
    // is a __syncwarp needed, so that nothing is posted before it is staged, and nothing is staged over what is
    // still to be read?
    assert(!"Task 1 is still to do: message by message through one staging buffer");
    // end of TASK 1
}

// The other side of rungs 1 and 2: waits for all messages, then reads them.
extern "C" __global__ void receive_messages(const uint32_t* arrived, int messages, const char* inbox, size_t bytes,
                                            char* out, int peer) {
    if (blockIdx.x != 0) return;
    int failed = 0;
    if (threadIdx.x == 0) failed = !ep::wait_until_ge_u32(arrived, messages, {ep::kPhaseSignal, peer, -1});
    if (__syncthreads_or(failed)) return;
    for (size_t i = threadIdx.x; i < messages * bytes; i += blockDim.x) out[i] = inbox[i];
}

// ---- Rung 2: one quiet for a batch ----------------------------------------------------------------------------------
// A quiet waits for a whole round trip. With one per message, the network carries one message at a time; with one per
// batch, it is busy with all of them. The price: each message needs a source of its own until the quiet.
extern "C" __global__ void send_batched(char* inbox, const char* outbox, size_t bytes, int messages, uint32_t* arrived,
                                        int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id(), qp = queue_pair_of(0);
    // TASK 2 (3 points): a batch of messages with one quiet
    // All messages lie ready in `outbox`, message i at i * bytes, and go to the same place in `inbox`. Put them
    // all, wait once, and add `messages` to the peer's `arrived`. A quiet for each message would carry one
    // message at a time over the network.
    assert(!"Task 2 is still to do: a batch of messages with one quiet");
    // end of TASK 2
}

// ---- Rung 3: put with signal ----------------------------------------------------------------------------------------
// One operation: the data, and then a signal, in this order on every network. The sender waits only once, for a quiet
// at the end, before the outbox may be reused. It orders a signal behind its own data only: message 2 may be there
// before message 1. So each message has its own signal, and not all of them one counter.
extern "C" __global__ void send_with_signals(char* inbox, const char* outbox, size_t bytes, int messages,
                                             uint64_t* signals, int peer) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int i = 0; i < messages; ++i) {
        const size_t at = i * bytes;
        ep::net_put_signal_nbi(inbox + at, outbox + at, bytes, signals + i, 1, peer, i % ep::num_queue_pairs());
    }
    ep::net_quiet(peer);
}

extern "C" __global__ void receive_each(const uint64_t* signals, int messages, const char* inbox, size_t bytes,
                                        char* out, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int i = 0; i < messages; ++i) {
        if (!ep::wait_until_ge_warp(signals + i, 1, {ep::kPhaseSignal, peer, i})) return;
        for (size_t k = ep::lane_id(); k < bytes; k += ep::kWarpSize) out[i * bytes + k] = inbox[i * bytes + k];
    }
}

// ---- Rung 4: staged atomics -----------------------------------------------------------------------------------------
// A NIC stages an atomic: it reads, adds, and writes back. Atomics that come through one NIC respect each other; one that
// a GPU makes in between is lost. InfiniBand promises no more either (IBV_ATOMIC_HCA), unless a NIC reports
// IBV_ATOMIC_GLOB; on EFA NVSHMEM does it in host code. So a counter has one kind of writer: here every rank has a slot
// of its own in the target's `counters`, and the reader sums them up. Sources: docs/networks.md.
extern "C" __global__ void count_by_source(uint32_t* counters, int times, int target) {
    if (threadIdx.x != 0) return;
    const int qp = queue_pair_of(static_cast<int>(blockIdx.x));
    // TASK 3 (2 points): counters with one kind of writer
    // Every rank adds 1, `times` times, in the `counters` of rank `target`, which has one for each rank. EFA's
    // NIC reads, adds and writes back: an atomic that a GPU makes in between is lost. So which of the counters
    // may this rank add to? What was posted is done after a quiet only.
    assert(!"Task 3 is still to do: counters with one kind of writer");
    // end of TASK 3
}

// ---- Rung 5: channels -----------------------------------------------------------------------------------------------
// As in DeepEP: one warp and one queue pair per channel, `chunk` messages at a time, and a tail that says how many are
// there. The quiet before the tail makes it right on EFA, and on InfiniBand with adaptive routing or relaxed ordering;
// without these two the order of InfiniBand's queue pair would be enough.
// `inbox` and `outbox` hold `messages` messages for each channel, one channel after the other.
extern "C" __global__ void channel_send(char* inbox, const char* outbox, size_t bytes, int messages, int chunk,
                                        uint32_t* tails, int peer) {
    if (threadIdx.x >= ep::kWarpSize) return;
    const int channel = static_cast<int>(blockIdx.x), lane = ep::lane_id(), qp = queue_pair_of(channel);
    // TASK 4 (4 points): repair a kernel that is right on InfiniBand and wrong on EFA
    // As in DeepEP: a channel sends its messages `chunk` at a time, and adds the number of messages to its tail.
    // The kernel below trusts the queue pair to keep the tail behind the data. EFA (srd) keeps no order: find
    // the line that is missing there, and wait no more than once per chunk.
    for (int begin = 0; begin < messages; begin += chunk) {
        const int count = min(chunk, messages - begin);
        for (int i = begin; i < begin + count; ++i) {
            const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
            nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
        }
        if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
    }
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
    // end of TASK 4
}

// Reads each chunk as soon as the tail has passed it.
extern "C" __global__ void channel_receive(const uint32_t* tails, int messages, int chunk, const char* inbox,
                                           size_t bytes, char* out, int peer) {
    const int channel = static_cast<int>(blockIdx.x);
    for (int begin = 0; begin < messages; begin += chunk) {
        const int end = min(begin + chunk, messages);
        int failed = 0;
        if (threadIdx.x == 0) failed = !ep::wait_until_ge_u32(tails + channel, end, {ep::kPhaseSignal, peer, channel});
        if (__syncthreads_or(failed)) return;
        const size_t first = (static_cast<size_t>(channel) * messages + begin) * bytes;
        const size_t size = (end - begin) * bytes;
        for (size_t i = threadIdx.x; i < size; i += blockDim.x) out[first + i] = inbox[first + i];
    }
}
