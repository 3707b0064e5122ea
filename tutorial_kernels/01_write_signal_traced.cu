// The pipeline of 01_write_signal.cu, rung 5, taking notes: in what order is each slot written and read?
//
// The steps are those of ep::pipe_send_warp and ep::pipe_receive_warp. Between them lane 0 takes the next number from one
// counter in rank 0's memory. That orders the events of both ranks without any clock, on every backend.
#include <ep/write_signal.cuh>

// notes [rounds, 2], own memory: when a round's slot began to be written (or read), and when that was done.
__device__ void note(uint64_t* counter, uint64_t* notes, uint64_t round, int which) {
    if (ep::lane_id() == 0) {
        notes[2 * round + which] = ep::atom_add_acq_rel_sys_u64(ep::peer_ptr(counter, 0), 1);
    }
    __syncwarp();
}

// With use_credits 0 this is the mistake of pipelined_send_without_credits in 01_write_signal_broken.cu.
extern "C" __global__ void pipelined_send_traced(char* slots, size_t slot_bytes, int num_slots, uint64_t* arrived,
                                                 uint64_t* credits, const char* source, uint64_t rounds, int peer,
                                                 int use_credits, uint64_t* counter, uint64_t* notes) {
    for (uint64_t round = 0; round < rounds; ++round) {
        const uint64_t slot = round % num_slots;
        if (use_credits && round >= num_slots) {
            if (!ep::wait_until_ge_warp(credits, round - num_slots + 1, {ep::kPhaseCredit, peer, int64_t(slot)}))
                return;
        }
        note(counter, notes, round, 0);
        ep::put_warp(slots + slot * slot_bytes, source + round * slot_bytes, slot_bytes, peer);
        __syncwarp();
        note(counter, notes, round, 1);
        if (ep::lane_id() == 0) ep::signal_add(arrived, 1, peer);
    }
}

extern "C" __global__ void pipelined_receive_traced(char* slots, size_t slot_bytes, int num_slots, uint64_t* arrived,
                                                    uint64_t* credits, char* out, uint64_t rounds, int peer,
                                                    uint64_t* counter, uint64_t* notes) {
    for (uint64_t round = 0; round < rounds; ++round) {
        const uint64_t slot = round % num_slots;
        if (!ep::wait_until_ge_warp(arrived, round + 1, {ep::kPhaseSignal, peer, int64_t(slot)})) return;
        note(counter, notes, round, 0);
        ep::copy_bytes<1>(out + round * slot_bytes, slots + slot * slot_bytes, slot_bytes, ep::lane_id(),
                          ep::kWarpSize);
        __syncwarp();
        note(counter, notes, round, 1);
        if (ep::lane_id() == 0) ep::signal_add(credits, 1, peer);
    }
}
