// The contest's dispatch: the contestant's function, and a kernel behind it that reads what it made.
#include <calls/contest_dispatch.cuh>
#include "../../ep_lib/workshop/hidden/grader.cuh"

//   what   0: the canary, 1: the contestant, 2: reads
extern "C" __global__ void run(int what, uint64_t* flags, uint32_t* numbers, int4* rows, uint32_t* own, int4* told,
                               const int4* x, const int* topk_idx, int* num_rows, int* send_index,
                               const int64_t* sizes) {
    if (what == 0) return canary(own);
    const auto n = [&](int i) { return static_cast<int>(sizes[i]); };
    const Dispatch job = {{flags, numbers, own}, x, topk_idx, rows, num_rows, send_index, n(0), n(1), n(2), n(3), n(4)};
    if (what == 1) return piece_dispatch(job);
    const int all = min(*num_rows, ep::num_ranks() * job.max_tokens) * job.vectors;
    for (int i = ep::thread_in_block(); i < all; i += ep::threads_in_block()) {
        told[i] = rows[i];  // role: the next kernel, which reads the rows that arrived
    }
}
