#include <moe/pcie/combine.cuh>

template <typename T>
__global__ void __launch_bounds__(512)
    ep_pcie_combine(ep::PcieCombineArgs args, int4* out, const int4* y, const int* topk_idx, const float* topk_weights,
                    const int* slot, const int* sends, const int* receives, const int* first_row) {
    ep::pcie_combine<T>(args, out, y, topk_idx, topk_weights, slot, sends, receives, first_row);
}
