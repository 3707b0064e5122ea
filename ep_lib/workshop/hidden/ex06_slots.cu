// The other half of every test of exercise 06_slots: passes votes, values and counts to the learner's functions and
// records what they say.
#include <calls/ex06_slots.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex06_slots.py sets others than these defaults (job_of).
struct Job {
    int64_t callers = 0;  // threads that call: the block's first ones; in tasks 3 and 4 all but lane 0 of each warp
    int64_t calls = 0;    // tasks 1 and 2: the number of consecutive calls
    int64_t stride = 1;   // task 3
    int64_t row_vectors = 1;
};

EP_DEVICE void ask(int task, const Job& job, const int* given, int4* rows, int64_t* told) {
    const int thread = ep::thread_in_block();
    const int64_t callers = job.callers;
    __shared__ int warp_totals[32];
    for (int64_t call = 0; call < job.calls; ++call) {
        int total = -1, answer;
        if (task == 1) {
            answer = piece_votes_below(given[call * callers + thread] != 0, &total);
        } else {
            const int value = given[call * ep::warps_in_block() + ep::warp_id()];
            answer = piece_sum_of_lower_warps(value, warp_totals, &total);
        }
        told[2 * (call * callers + thread)] = answer;
        told[2 * (call * callers + thread) + 1] = total;
    }
    const int me = caller();
    if (task == 3) told[me] = piece_rows_before(given + 1, static_cast<int>(job.stride), me);
    if (task == 4) {
        const int to = given[2 * me], index = given[2 * me + 1];
        const int4* const row = piece_row_at(rows, to, index, static_cast<int>(job.row_vectors));
        told[me] = reinterpret_cast<int64_t>(row) - reinterpret_cast<int64_t>(ep::peer_ptr(rows, to));
    }
}

}  // namespace

//   given  task 1: [calls, callers], the votes   2: [calls, warps]   3: [callers, stride], counts   4: [callers, 2] rank, row
//   rows   symmetric
//   told   1, 2: [calls, callers, 2], the answer and the total   3, 4: [callers]
extern "C" __global__ void examine(int task, int4* rows, const int* given, int64_t* told, const int64_t* numbers) {
    if (task == 0) return canary(told);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const int me = task >= 3 ? caller() : ep::thread_in_block();
    if (me >= 0 && me < job.callers) ask(task, job, given, rows, told);
    meet_at_the_end();
}
