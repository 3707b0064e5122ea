#include <ep/notify.cuh>

extern "C" __global__ void ep_notify(ep::NotifyArgs args, const int* rank_counts, const int* expert_counts, int* plan) {
    ep::notify(args, rank_counts, expert_counts, plan);
}
