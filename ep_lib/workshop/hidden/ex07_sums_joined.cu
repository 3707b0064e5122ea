// 07_sums, task 1, where products and sums may be joined: calls/ex07_sums_joined.cuh.
#include <calls/ex07_sums_joined.cuh>
#include <grader.cuh>

//   given [count, 3], bits of sum, weight and value; told [count]
extern "C" __global__ void join(int task, const int* given, const float*, int* told, const int64_t* numbers) {
    if (task == 0) return canary(told);
    const int me = caller();
    if (me >= 0 && me < numbers[0]) {
        const float* const three = reinterpret_cast<const float*>(given + 3 * me);
        told[me] = __float_as_int(piece_add_weighted(three[0], three[1], three[2]));
    }
    meet_at_the_end();
}
