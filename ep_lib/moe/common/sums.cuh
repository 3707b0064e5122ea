// Adding up a token's rows: in ascending order of ranks, so that results are equal bit for bit in every run,
// independent of timing. The arithmetic is <ep/sums.cuh>; the kernels of each mode bring the rows;
// tutorial_kernels/07_combine.cu has the simple kernels that the course begins with.
#pragma once
#include <ep/sums.cuh>
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

namespace ep {

// Up to two arrays [num_tokens, row_vectors] that a sum begins with; null for none.
struct Bias {
    const int4* first;
    const int4* second;  // only with `first`
};

template <typename T>
EP_DEVICE void add_bias(Sums<T>& sums, const Bias& bias, int64_t i) {
    sums.add(ld_nc_v4(bias.first + i));
    if (bias.second) sums.add(ld_nc_v4(bias.second + i));
}

constexpr int kCombineRanks = 4;    // ranks whose rows a lane loads together
constexpr int kCombineVectors = 4;  // vectors of each of these rows

// The sums of one token's rows, in the columns of thread `first` of `step` threads that work together.
//   row_ptrs  [found]   the rows, in the order of addition
template <typename T>
EP_DEVICE void add_rows(int4* out, const RowPtr* row_ptrs, int found, int row_vectors, int first, int step) {
    for (int i = first; i < row_vectors; i += step) {
        Sums<T> sums;
        for (int p = 0; p < found; p += kCombineRanks) {
            int4 vectors[kCombineRanks];
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
                if (p + q < found) vectors[q] = ld_na_v4(row_ptrs[p + q].row + i);
            }
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
                if (p + q < found) sums.add(vectors[q], row_ptrs[p + q].weight);
            }
        }
        st_na_v4(out + i, sums.rounded());
    }
}

}  // namespace ep
