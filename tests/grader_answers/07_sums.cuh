// === right_by_hand
// Volatile in place of intrinsics where that is as good; rounding by integers.
// EXERCISE-BEGIN 2a
return __int_as_float(static_cast<int>(static_cast<unsigned>(word) << 16));
// EXERCISE-BEGIN 2b
return __int_as_float(static_cast<int>(static_cast<unsigned>(word) >> 16 << 16));
// EXERCISE-BEGIN 3
unsigned word = 0;
const float both[2] = {low, high};
for (int i = 0; i < 2; ++i) {
    unsigned bits = static_cast<unsigned>(__float_as_int(both[i]));
    if ((bits & 0x7fffffff) > 0x7f800000) {
        bits |= 0x400000;
    } else {
        bits += 0x7fff + (bits >> 16 & 1);
    }
    word |= bits >> 16 << 16 * i;
}
return static_cast<int>(word);
// EXERCISE-BEGIN 4
float sum = 0.0f;
for (int k = 0; k < top_k; ++k) {
    const int expert = topk_idx[static_cast<int64_t>(token) * top_k + k];
    if (expert < 0 || expert / experts_per_rank != rank) continue;
    sum = __fadd_rn(sum, topk_weights[static_cast<int64_t>(token) * top_k + k]);
}
return sum;
// === right_in_another_order_of_operands
// Addition and multiplication commute, rounded or not.
// EXERCISE-BEGIN 1
return __fadd_rn(__fmul_rn(value, weight), sum);
// EXERCISE-BEGIN 3
const unsigned a = __bfloat16_as_ushort(__float2bfloat16_rn(low)), b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
return static_cast<int>(b << 16 | a);
// === right_keeps_them_apart
// Only the product says how it rounds: it is joined to nothing then.
// EXERCISE-BEGIN 1
return sum + __fmul_rn(weight, value);
// === wrong_fused: 1: Round the product, then the sum
// Rounds once.
// EXERCISE-BEGIN 1
return fmaf(weight, value, sum);
// === wrong_joined_by_gpus: 1: __fmul_rn and __fadd_rn, which no compiler joins|as GPUs' compilers join a product and a sum
// One operation wherever the compiler may join them, as GPUs' compilers do.
// EXERCISE-BEGIN 1
const float product = weight * value;
return sum + product;
// === wrong_weight_last: 1: answers are wrong; the first is add_weighted(
// The sum is weighted, not the value.
// EXERCISE-BEGIN 1
return __fmul_rn(weight, __fadd_rn(sum, value));
// === wrong_halves_swapped: 2, 3: A bfloat16 is the upper half of a float32
// The first number is in the lower half.
// EXERCISE-BEGIN 2a
return __int_as_float(word & 0xffff0000);
// EXERCISE-BEGIN 2b
return __int_as_float(word << 16);
// === wrong_leaves_the_other: 2, 3: leave none of the other number
// The lower number is still in the upper one's bits.
// EXERCISE-BEGIN 2b
return __int_as_float(word);
// === wrong_converts: 2, 3: the two halves of word 0x
// The bits as a number.
// EXERCISE-BEGIN 2a
return static_cast<float>(word & 0xffff);
// === wrong_cuts_off: 3: To the nearest, ties to even
// Rounds toward zero.
// EXERCISE-BEGIN 3
return static_cast<int>(static_cast<unsigned>(__float_as_int(low)) >> 16 | (static_cast<unsigned>(__float_as_int(high)) & 0xffff0000u));
// === wrong_rounds_up: 3: To the nearest, ties to even
// Ties away from zero.
// EXERCISE-BEGIN 3
const unsigned a = static_cast<unsigned>(__float_as_int(low)) + 0x8000, b = static_cast<unsigned>(__float_as_int(high)) + 0x8000;
return static_cast<int>(a >> 16 | (b & 0xffff0000u));
// === wrong_minus_one_is_an_expert: 4: -1 is none
// -1 / experts_per_rank is 0.
// EXERCISE-BEGIN 4
-        const int local = topk_idx[first + k] - rank * experts_per_rank;
-        if (local >= 0 && local < experts_per_rank) sum = __fadd_rn(sum, topk_weights[first + k]);
+        if (topk_idx[first + k] / experts_per_rank == rank) sum = __fadd_rn(sum, topk_weights[first + k]);
// === wrong_first_expert_only: 4: the weight on rank 0 is
// A token may have two experts on a rank.
// EXERCISE-BEGIN 4
const int64_t first = static_cast<int64_t>(token) * top_k;
for (int k = 0; k < top_k; ++k) {
    const int local = topk_idx[first + k] - rank * experts_per_rank;
    if (local >= 0 && local < experts_per_rank) return topk_weights[first + k];
}
return 0.0f;
// === wrong_last_first: 4: added from the first to the last
// Added from the last to the first.
// EXERCISE-BEGIN 4
-    for (int k = 0; k < top_k; ++k) {
+    for (int k = top_k - 1; k >= 0; --k) {
// === wrong_adds_zero: 2: the two halves of word 0x8000
// Computes where bits need to move: -0 becomes 0.
// EXERCISE-BEGIN 2a
return __fadd_rn(__int_as_float(word << 16), 0.0f);
// === wrong_skips_zeros: 1: add_weighted(-0
// Leaves a product of 0 out: -0 and 0 are 0.
// EXERCISE-BEGIN 1
const float p = __fmul_rn(weight, value); return p == 0.0f ? sum : __fadd_rn(sum, p);
// === wrong_borrows: 2: the two halves of word 0x
// A lower half of zero borrows from the upper one.
// EXERCISE-BEGIN 2b
return __int_as_float((word - 1) & 0xffff0000);
// === wrong_experts_of_8_bits: 4: the weight on rank
// Numbers of experts above 127 are others.
// EXERCISE-BEGIN 4
-        const int local = topk_idx[first + k] - rank * experts_per_rank;
+        const int local = static_cast<signed char>(topk_idx[first + k]) - rank * experts_per_rank;
// === wrong_waits_for_its_warp: 1, 3: wait in __syncwarp
// Each thread adds for itself; this one waits for its warp.
// EXERCISE-BEGIN 1
+    __syncwarp();
     return __fadd_rn(sum, __fmul_rn(weight, value));
// === wrong_token_of_16_bits: 4: KernelFault|the weight on rank
// Tokens from 32768 on are others.
// EXERCISE-BEGIN 4
-    const int64_t first = static_cast<int64_t>(token) * top_k;
+    const int64_t first = static_cast<int64_t>(static_cast<int16_t>(token)) * top_k;
// === wrong_expert_twice_is_one: 4: the weight on rank
// What a token names twice it weighs twice.
// EXERCISE-BEGIN 4
         const int local = topk_idx[first + k] - rank * experts_per_rank;
+        if (k > 0 && topk_idx[first + k] == topk_idx[first + k - 1]) continue;
