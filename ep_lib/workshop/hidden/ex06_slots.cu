// The other half of every test of exercise 06_slots: passes votes, values and counts to the learner's functions and
// records what they say.
#include <ep/slots.cuh>
#include <grader.cuh>

namespace {

// Mirrors _Job of ex06_slots.py.
struct Job {
    int64_t calls;   // tasks 1 and 2: one after the other
    int64_t stride;  // task 3
    int64_t row_vectors;
};

}  // namespace

//   given  task 1: [calls, threads], the votes   2: [calls, warps]   3: [threads, stride], counts   4: [threads, 2] rank, row
//   rows   symmetric
//   told   1, 2: [calls, threads, 2], the answer and the total   3, 4: [threads]
extern "C" __global__ void examine(int task, const int* given, int4* rows, int64_t* told, char* seen,
                                   const int64_t* numbers) {
    if (task == 0) return canary(seen);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const int thread = ep::thread_in_block(), threads = ep::threads_in_block();
    __shared__ int warp_totals[ep::kMaxWarps];
    for (int64_t call = 0; call < job.calls; ++call) {
        int total = -1, answer;
        if (task == 1) {
            answer = ep::votes_below(given[call * threads + thread] != 0, &total);
        } else {
            const int value = given[call * ep::warps_in_block() + ep::warp_id()];
            answer = ep::sum_of_lower_warps(value, warp_totals, &total);
        }
        told[2 * (call * threads + thread)] = answer;
        told[2 * (call * threads + thread) + 1] = total;
    }
    if (task == 3) told[thread] = ep::rows_before(given + 1, static_cast<int>(job.stride), thread);
    if (task == 4) {
        const int to = given[2 * thread], index = given[2 * thread + 1];
        const int4* const row = ep::row_at(rows, to, index, static_cast<int>(job.row_vectors));
        told[thread] = reinterpret_cast<int64_t>(row) - reinterpret_cast<int64_t>(ep::peer_ptr(rows, to));
    }
}
