// The other half of every test of exercise 08_fp8: passes numbers to the learner's functions and records the results.
#include <calls/ex08_fp8.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex08_fp8.py sets them (job_of).
struct Job {
    int64_t rows;    // task 5: rows; other tasks: numbers, pairs or lanes
    int64_t hidden;  // elements of a row
    int64_t warps;   // tasks 1, 4 and 5: warps of each block that call
};

// This thread's number among all callers; -1: it calls nothing.
EP_DEVICE int number(int task, const Job& job) {
    if (task == 2 || task == 3) return caller() < job.rows ? caller() : -1;
    const int warps = static_cast<int>(job.warps), warp = static_cast<int>(blockIdx.x) * warps + ep::warp_id();
    return ep::warp_id() < warps ? warp * ep::kWarpSize + ep::lane_id() : -1;
}

EP_DEVICE void ask(int task, const Job& job, const char* x, char* numbers, float* scales, int me) {
    const float* const floats = reinterpret_cast<const float*>(x);
    const int4* const vectors = reinterpret_cast<const int4*>(x);
    if (task == 1) {
        scales[me] = piece_fp8_group_largest(floats + 16 * me);
    } else if (task == 2) {
        scales[me] = piece_fp8_scale(floats[me]);
    } else if (task == 3) {
        const unsigned bits = piece_fp8_pair(floats[3 * me], floats[3 * me + 1], floats[3 * me + 2]);
        scales[me] = __int_as_float(static_cast<int>(bits));
    } else if (task == 4) {
        float scale;
        reinterpret_cast<int4*>(numbers)[me] = piece_quantize_fp8(vectors[2 * me], vectors[2 * me + 1], &scale);
        scales[me] = scale;
    } else {
        const int64_t warps = gridDim.x * job.warps;
        for (int64_t row = me / ep::kWarpSize; row < job.rows; row += warps) {
            piece_quantize_row_warp(vectors + row * job.hidden / 8, reinterpret_cast<int4*>(numbers + row * job.hidden),
                                    scales + row * job.hidden / 128, static_cast<int>(job.hidden));
            __syncwarp();  // a lane that returned before the others' shuffles waits here, and does not leave the kernel
        }
    }
}

}  // namespace

//   x        task 1: float [lanes, 16]   2: float [n]   3: float [n, 3], two numbers and a scale
//            4: bfloat16 [lanes, 16]     5: bfloat16 [rows, hidden]
//   numbers  4: [lanes, 16] bytes        5: [rows, hidden] bytes
//   scales   float: one per lane, number or pair (task 3: bits); 5: [rows, hidden / 128]
extern "C" __global__ void examine(int task, const char* x, char* numbers, float* scales, const int64_t* job_numbers) {
    if (task == 0) return canary(scales);
    const Job& job = *reinterpret_cast<const Job*>(job_numbers);
    const int me = number(task, job);
    if (me >= 0) ask(task, job, x, numbers, scales, me);
    meet_at_the_end();
}
