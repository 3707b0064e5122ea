// Write, then signal: how one GPU hands data to another without asking a CPU. A ladder with one idea per rung.
//
//     sender                                   receiver
//     writes into the receiver's memory  --->  [ target ]
//     then adds to the receiver's signal --->  [ signal ]   sees the signal, and only then reads the target
//
// `target`, `signal`, `slots`, `arrived` and `credits` are symmetric arrays: every rank has its own copy at the same
// offset of its heap. A kernel is given *its own* copy's address, and ep::peer_ptr turns it into the peer's.
// The functions called from rung 2 on are those of <ep/write_signal.cuh>; exercise 01 lets you write them yourself.
//
// Rung  Kernel                     Idea
// 0     write_signal_bare          everything by hand, one byte at a time
// 1     wait_and_read              the other side
// 2     write_signal_thread        rung 0 with the library's functions
// 3     write_signal_warp          32 lanes write, one signals
// 4     multi_write_one_signal     one signal for many writes
// 5     pipelined_send, _receive   many rounds through a few slots, made safe by credits
// 6     publish_words              words that others read at any time: atomics, and still a release
//
// 01_write_signal_broken.cu has each of these with its classic mistake.
#include <ep/write_signal.cuh>

// ---- Rung 0: by hand -----------------------------------------------------------------------------------------------
// What an address on another GPU is like: any other address. A store to it crosses NVLink.
extern "C" __global__ void write_signal_bare(char* target, const char* source, size_t bytes, uint64_t* signal,
                                             int peer) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    char* their_target = ep::peer_ptr(target, peer);
    uint64_t* their_signal = ep::peer_ptr(signal, peer);

    for (size_t i = 0; i < bytes; ++i) their_target[i] = source[i];

    // Stores to different addresses may arrive in any order. The release makes this one arrive after all of the above;
    // sys says that its reader may be outside of this GPU.
    ep::red_add_release_sys_u64(their_signal, 1);
}

// ---- Rung 1: the waiting side ---------------------------------------------------------------------------------------
// One thread polls: more would only load the memory system. The barrier tells the others, and passes on what the
// polling thread's acquire made visible. A wait can fail (the peer may have died): it has a limit, and the kernel
// returns.
extern "C" __global__ void wait_and_read(const uint64_t* signal, uint64_t expected, const char* data, size_t bytes,
                                         char* out, int peer) {
    if (blockIdx.x != 0) return;
    int failed = 0;
    if (threadIdx.x == 0) failed = !ep::wait_for_signal(signal, expected, peer);
    if (__syncthreads_or(failed)) return;

    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = data[i];
}

// ---- Rung 2: one thread, with the library ---------------------------------------------------------------------------
// 16 bytes at a time and several of them under way, since a round trip to a peer takes microseconds.
extern "C" __global__ void write_signal_thread(char* target, const char* source, size_t bytes, uint64_t* signal,
                                               int peer) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    ep::write_and_signal_thread(target, source, bytes, signal, 1, peer);
}

// ---- Rung 3: a warp writes ------------------------------------------------------------------------------------------
// 32 lanes have 32 times as many stores under way. Still one signal: __syncwarp puts every lane's stores before lane
// 0's release. One signal per lane would be 32 messages, and the receiver would have to count to 32.
extern "C" __global__ void write_signal_warp(char* target, const char* source, size_t bytes, uint64_t* signal,
                                             int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    ep::write_and_signal_warp(target, source, bytes, signal, 1, peer);
}

// ---- Rung 4: several writes, one signal -----------------------------------------------------------------------------
// A signal says "everything before me is there", so one is enough for any number of writes to the same peer. Piece i is
// bytes offsets[i] to offsets[i + 1] of `source`, and goes to the same place of `target`. At most 32 pieces.
extern "C" __global__ void multi_write_one_signal(char* target, const char* source, const uint64_t* offsets, int pieces,
                                                  uint64_t* signal, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    __shared__ ep::Write writes[ep::kWarpSize];
    const int lane = ep::lane_id();
    if (lane < pieces) {
        const uint64_t begin = offsets[lane], end = offsets[lane + 1];
        writes[lane] = {target + begin, source + begin, end - begin};
    }
    __syncwarp();
    ep::write_many_and_signal_warp(writes, pieces, signal, 1, peer);
}

// ---- Rung 5: many rounds through a few slots ------------------------------------------------------------------------
// With one buffer the sender would idle while the receiver reads. With a ring of slots it can be `num_slots` rounds
// ahead. But it must not overwrite a slot that is still being read, and only the receiver knows: for each slot it has
// emptied it sends a credit back. Both counters only grow, so round r needs
//     to read a slot:        arrived >= r + 1
//     to overwrite a slot:   credits >= r + 1 - num_slots        (the first num_slots rounds need none)
// One warp each. The counters start at zero.
extern "C" __global__ void pipelined_send(char* slots, size_t slot_bytes, int num_slots, uint64_t* arrived,
                                          uint64_t* credits, const char* source, uint64_t rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const ep::Pipe pipe = {slots, slot_bytes, num_slots, arrived, credits};
    for (uint64_t round = 0; round < rounds; ++round) {
        if (!ep::pipe_send_warp(pipe, source + round * slot_bytes, round, peer)) return;
    }
}

extern "C" __global__ void pipelined_receive(char* slots, size_t slot_bytes, int num_slots, uint64_t* arrived,
                                             uint64_t* credits, char* out, uint64_t rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const ep::Pipe pipe = {slots, slot_bytes, num_slots, arrived, credits};
    for (uint64_t round = 0; round < rounds; ++round) {
        if (!ep::pipe_receive_warp(pipe, out + round * slot_bytes, round, peer)) return;
    }
}

// ---- Rung 6: words that others read at any time ----------------------------------------------------------------------
// A board of counters, heartbeats, lengths of queues is read at any time, so every access of a word is an atomic one,
// which never tears and never races. But relaxed atomics order nothing. For a reader that wants these words and no older
// ones, they need what plain data needs: the number of the edition is stored with release, and loaded with acquire.
extern "C" __global__ void publish_words(uint64_t* board, const uint64_t* words, int count, uint64_t* edition,
                                         uint64_t number, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int i = ep::lane_id(); i < count; i += ep::kWarpSize) {
        ep::st_relaxed_sys_u64(ep::peer_ptr(board + i, peer), words[i]);
    }
    __syncwarp();
    if (ep::lane_id() == 0) ep::st_release_sys_u64(ep::peer_ptr(edition, peer), number);
}

extern "C" __global__ void wait_and_look(const uint64_t* edition, uint64_t number, const uint64_t* board, int count,
                                         uint64_t* out, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    int ok = 0;
    if (ep::lane_id() == 0) {
        ok = ep::poll_until([&] { return ep::ld_acquire_sys_u64(edition) >= number; },
                            [&] { ep::record_fault(ep::kFaultTimeout, {ep::kPhaseSignal, peer, -1}, 0, number); });
    }
    ok = __shfl_sync(ep::kFullWarp, ok, 0);
    __syncwarp();
    for (int i = ep::lane_id(); i < count && ok; i += ep::kWarpSize) out[i] = ep::ld_relaxed_sys_u64(board + i);
}
