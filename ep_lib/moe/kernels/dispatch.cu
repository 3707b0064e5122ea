#include <ep/dispatch.cuh>

extern "C" __global__ void __launch_bounds__(1024)
    ep_dispatch(ep::DispatchArgs args, const int4* x, const int* topk_idx, const float* topk_weights, const int* slot,
                const int* first_row) {
    ep::dispatch(args, x, topk_idx, topk_weights, slot, first_row);
}
