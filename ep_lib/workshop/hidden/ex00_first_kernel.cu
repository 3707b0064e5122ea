// The other half of every test of exercise 00_first_kernel: block 0 sends, block 1 waits and reads. What is not the
// learner's is the grader's own.
#include <calls/ex00_first_kernel.cuh>
#include <ep/wait.cuh>
#include <grader.cuh>

namespace {

constexpr int kGuard = 5;  // words before and behind the numbers, which are therefore aligned to 4 bytes only

}  // namespace

//   route   the peer, the rank that sends to this one, and the number of earlier signals
extern "C" __global__ void examine(int task, int* box, uint64_t* flag, const int* numbers, int* found,
                                   const int64_t* route, int count) {
    if (task == 0) return canary(found);
    const int peer = int(route[0]), from = int(route[1]), me = threadIdx.x, threads = blockDim.x;
    const uint64_t before = route[2];
    int* const mine = box + kGuard;
    if (blockIdx.x == 0 && peer >= 0) {
        if (task == 1) {
            piece_write_numbers(mine, numbers, count, peer);
        } else {
            for (int i = threads - 1 - me; i < count; i += threads) {
                let_others_run(me % 3);
                ep::peer_ptr(mine, peer)[i] = numbers[i];  // role: the block's writes before the signal
            }
        }
        if (task == 2) {
            piece_tell(flag, peer);
        } else {
            __syncthreads();
            if (me == 0) ep::signal_add(flag, 1, peer);
        }
    }
    if (blockIdx.x == 1 && from >= 0) {
        // Until it changes, not until it is one more: so the message about a flag that was set instead says so.
        if (!ep::poll_until(
                [&] { return ep::ld_acquire_sys_u64(flag) != before; },
                [&] { ep::record_fault(ep::kFaultTimeout, {ep::kPhaseSignal, from, -1}, before, before + 1); }, from))
            return;
        for (int i = me; i < count; i += threads) {
            found[i] = mine[i];  // role: the receiver, which reads the numbers after the signal
        }
    }
}
