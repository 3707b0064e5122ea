#include <ep/platform.cuh>

namespace ep::deep_ep {

struct CountArgs {
    int num_tokens;
    int top_k;
    int experts_per_rank;
};

// A block counts everything about one rank; dynamic shared memory: an int for each expert of a rank.
//   topk_idx          [num_tokens, top_k]          global expert ids; invalid ids are not counted
//   is_token_in_rank  [num_tokens, ranks]          out
//   rank_counts       [ranks]                      out: tokens that go to each rank
//   expert_counts     [ranks * experts_per_rank]   out: choices of each expert
template <typename Index>
__global__ void count_choices(CountArgs args, const Index* topk_idx, bool* is_token_in_rank, int* rank_counts,
                              int* expert_counts) {
    extern __shared__ int choices[];
    const int num_tokens = args.num_tokens, top_k = args.top_k, experts_per_rank = args.experts_per_rank;
    const int rank = blockIdx.x, thread = threadIdx.x, num_threads = blockDim.x;
    const Index first = static_cast<Index>(rank) * experts_per_rank;
    for (int e = thread; e < experts_per_rank; e += num_threads) choices[e] = 0;
    __syncthreads();
    int sent = 0;
    for (int round = 0; round < num_tokens; round += num_threads) {
        const int token = round + thread;
        bool goes = false;
        for (int k = 0; token < num_tokens && k < top_k; ++k) {
            const Index id = topk_idx[static_cast<int64_t>(token) * top_k + k];
            if (id < first || id >= first + experts_per_rank) continue;
            goes = true;
            atomicAdd(&choices[id - first], 1);
        }
        if (token < num_tokens) is_token_in_rank[static_cast<int64_t>(token) * gridDim.x + rank] = goes;
        sent += __syncthreads_count(goes);
    }
    if (thread == 0) rank_counts[rank] = sent;
    for (int e = thread; e < experts_per_rank; e += num_threads) expert_counts[first + e] = choices[e];
}

}  // namespace ep::deep_ep
