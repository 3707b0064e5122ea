// The other half of every test of exercise 07_sums: passes numbers to the learner's functions and records the bits of
// their results.
#include <calls/ex07_sums.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex07_sums.py sets others than these defaults (job_of).
struct Job {
    int64_t count = 0;  // of results, or of vectors in a row
    int64_t rows = 0;   // task 3, whole rows: how many are added
    int64_t top_k = 0, experts_per_rank = 0, ranks = 0;
    int64_t first = 0;  // task 4: the number of the first token, before which `given` and `weights` have nothing
};

EP_DEVICE void ask(int task, const Job& job, const int* given, const float* weights, int* told, int me) {
    const int count = static_cast<int>(job.count);
    if (task == 1) {
        const float* const three = reinterpret_cast<const float*>(given + 3 * me);
        told[me] = __float_as_int(piece_add_weighted(three[0], three[1], three[2]));
    } else if (task == 2) {
        told[2 * me] = __float_as_int(piece_bfloat16_low(given[me]));
        told[2 * me + 1] = __float_as_int(piece_bfloat16_high(given[me]));
    } else if (task == 3) {
        const float* const two = reinterpret_cast<const float*>(given + 2 * me);
        told[me] = piece_bfloat16_word(two[0], two[1]);
    } else if (task == 4) {
        for (int r = 0; r < job.ranks; ++r) {
            const int token = static_cast<int>(job.first) + me;
            const float weight = piece_weight_on(static_cast<int>(job.top_k), static_cast<int>(job.experts_per_rank), r,
                                                 token, given, weights);
            told[r * count + me] = __float_as_int(weight);
        }
    } else {
        const int4* const rows = reinterpret_cast<const int4*>(given) + me;
        const auto add = task == 5 ? piece_sums_float : piece_sums_bfloat16;
        add(rows, job.count, job.rows, weights, reinterpret_cast<int4*>(told) + me);
    }
}

}  // namespace

//   task 1: given [count, 3], bits of sum, weight and value      2: [count] words; told [count, 2]
//   3: given [count, 2], bits of two floats     4: [count, top_k] ids; told [ranks, count]
//   5, 6 (for tasks 1 and 3): rows of float32 and of bfloat16, told [count vectors]
extern "C" __global__ void examine(int task, const int* given, const float* weights, int* told,
                                   const int64_t* numbers) {
    if (task == 0) return canary(told);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const int me = caller();
    if (me >= 0 && me < job.count) ask(task, job, given, weights, told, me);
    meet_at_the_end();
}
