#include <moe/pcie/dispatch.cuh>

extern "C" __global__ void __launch_bounds__(512)
    ep_pcie_dispatch(ep::PcieDispatchArgs args, ep::Tokens tokens, ep::Arrivals arrivals, const int* slot,
                     const int* sends, const int* receives, const int* first_row) {
    ep::pcie_dispatch(args, tokens, arrivals, slot, sends, receives, first_row);
}
