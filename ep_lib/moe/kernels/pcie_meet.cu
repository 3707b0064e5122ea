#include <moe/pcie/exchange_counts.cuh>

extern "C" __global__ void ep_pcie_meet(ep::PcieMeetArgs args, const int* slot, const int* rank_counts,
                                        const int* expert_counts, uint64_t* notes, int* plan) {
    ep::pcie_meet(args, slot, rank_counts, expert_counts, notes, plan);
}
