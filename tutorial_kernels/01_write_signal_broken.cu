// The kernels of 01_write_signal.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// Each has the parameters of the right kernel, and most are right on many runs: that is what makes these mistakes
// costly. On the emulator some seeds show the damage; on a GPU it comes and goes with load, sizes and hardware.
#include <ep/write_signal.cuh>

// WRONG: signal before data. The receiver may read before the data has come.
extern "C" __global__ void write_signal_thread_reversed(char* target, const char* source, size_t bytes,
                                                        uint64_t* signal, int peer) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    ep::signal_add(signal, 1, peer);
    ep::put_thread(target, source, bytes, peer);
}

// WRONG: no __syncwarp between the lanes' writes and lane 0's signal. Lanes of a warp do not run in lockstep, and lane
// 0's release covers only what came before it: the other lanes' bytes may still be missing.
extern "C" __global__ void write_signal_warp_short(char* target, const char* source, size_t bytes, uint64_t* signal,
                                                   int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    ep::put_warp(target, source, bytes, peer);
    if (ep::lane_id() == 0) ep::signal_add(signal, 1, peer);
}

// WRONG: no wait for the signal. The data is read in whatever state it is.
extern "C" __global__ void read_without_wait(const uint64_t* signal, uint64_t expected, const char* data, size_t bytes,
                                             char* out, int peer) {
    if (blockIdx.x != 0) return;
    (void)signal, (void)expected, (void)peer;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = data[i];
}

// WRONG: no credits. A fast sender overwrites slots that the receiver has not read.
extern "C" __global__ void pipelined_send_without_credits(char* slots, size_t slot_bytes, int num_slots,
                                                          uint64_t* arrived, uint64_t* credits, const char* source,
                                                          uint64_t rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    (void)credits;
    for (uint64_t round = 0; round < rounds; ++round) {
        char* slot = slots + round % num_slots * slot_bytes;
        ep::write_and_signal_warp(slot, source + round * slot_bytes, slot_bytes, arrived, 1, peer);
    }
}

// WRONG: the credit is given before the slot has been read, so the sender may overwrite what is being copied.
extern "C" __global__ void pipelined_receive_early_credit(char* slots, size_t slot_bytes, int num_slots,
                                                          uint64_t* arrived, uint64_t* credits, char* out,
                                                          uint64_t rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (uint64_t round = 0; round < rounds; ++round) {
        const char* slot = slots + round % num_slots * slot_bytes;
        if (!ep::wait_until_ge_warp(arrived, round + 1, {ep::kPhaseSignal, peer, int64_t(round % num_slots)})) return;
        if (ep::lane_id() == 0) ep::signal_add(credits, 1, peer);
        ep::copy_bytes<1>(out + round * slot_bytes, slot, slot_bytes, ep::lane_id(), ep::kWarpSize);
        __syncwarp();
    }
}

// WRONG: no credit is ever given back. With more rounds than slots the sender waits for ever, and so does the receiver:
// a deadlock, on every seed.
extern "C" __global__ void pipelined_receive_without_credit(char* slots, size_t slot_bytes, int num_slots,
                                                            uint64_t* arrived, uint64_t* credits, char* out,
                                                            uint64_t rounds, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    (void)credits;
    for (uint64_t round = 0; round < rounds; ++round) {
        const char* slot = slots + round % num_slots * slot_bytes;
        if (!ep::wait_until_ge_warp(arrived, round + 1, {ep::kPhaseSignal, peer, int64_t(round % num_slots)})) return;
        ep::copy_bytes<1>(out + round * slot_bytes, slot, slot_bytes, ep::lane_id(), ep::kWarpSize);
        __syncwarp();
    }
}

// WRONG: the edition is stored without release. No checker of races sees it, since every access is an atomic one; on most
// machines it works, and PTX's memory model allows the words to arrive after it.
extern "C" __global__ void publish_words_relaxed(uint64_t* board, const uint64_t* words, int count, uint64_t* edition,
                                                 uint64_t number, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int i = ep::lane_id(); i < count; i += ep::kWarpSize) {
        ep::st_relaxed_sys_u64(ep::peer_ptr(board + i, peer), words[i]);
    }
    __syncwarp();
    if (ep::lane_id() == 0) ep::st_relaxed_sys_u64(ep::peer_ptr(edition, peer), number);
}

// WRONG: the edition is loaded without acquire: the words may be loaded before it.
extern "C" __global__ void wait_and_look_relaxed(const uint64_t* edition, uint64_t number, const uint64_t* board,
                                                 int count, uint64_t* out, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    int ok = 0;
    if (ep::lane_id() == 0) {
        ok = ep::poll_until([&] { return ep::ld_relaxed_sys_u64(edition) >= number; },
                            [&] { ep::record_fault(ep::kFaultTimeout, {ep::kPhaseSignal, peer, -1}, 0, number); });
    }
    ok = __shfl_sync(ep::kFullWarp, ok, 0);
    __syncwarp();
    for (int i = ep::lane_id(); i < count && ok; i += ep::kWarpSize) out[i] = ep::ld_relaxed_sys_u64(board + i);
}
