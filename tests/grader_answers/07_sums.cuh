// === right_by_hand
// EXERCISE-BEGIN 2a: Volatile in place of intrinsics where that is as good; rounding by integers.
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
// EXERCISE-BEGIN 1: Addition and multiplication commute, rounded or not.
return __fadd_rn(__fmul_rn(value, weight), sum);
// EXERCISE-BEGIN 3
const unsigned a = __bfloat16_as_ushort(__float2bfloat16_rn(low)), b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
return static_cast<int>(b << 16 | a);
// === right_keeps_them_apart
// EXERCISE-BEGIN 1: Only the product says how it rounds: it is joined to nothing then.
return sum + __fmul_rn(weight, value);
// === wrong_fused: 1: Round the product, then the sum
// EXERCISE-BEGIN 1: Rounds once.
return fmaf(weight, value, sum);
// === wrong_joined_by_gpus: 1: __fmul_rn and __fadd_rn, which no compiler joins|as GPUs' compilers join a product and a sum
// EXERCISE-BEGIN 1: One operation wherever the compiler may join them, as GPUs' compilers do.
const float product = weight * value;
return sum + product;
// === wrong_weight_last: 1: answers are wrong; the first is add_weighted(
// EXERCISE-BEGIN 1: The sum is weighted, not the value.
return __fmul_rn(weight, __fadd_rn(sum, value));
// === wrong_halves_swapped: 2, 3: A bfloat16 is the upper half of a float32
// EXERCISE-BEGIN 2a: The first number is in the lower half.
return __int_as_float(word & 0xffff0000);
// EXERCISE-BEGIN 2b
return __int_as_float(word << 16);
// === wrong_leaves_the_other: 2, 3: leave none of the other number
// EXERCISE-BEGIN 2b: The lower number is still in the upper one's bits.
return __int_as_float(word);
// === wrong_converts: 2, 3: the two halves of word 0x
// EXERCISE-BEGIN 2a: The bits as a number.
return static_cast<float>(word & 0xffff);
// === wrong_cuts_off: 3: To the nearest, ties to even
// EXERCISE-BEGIN 3: Rounds toward zero.
return static_cast<int>(static_cast<unsigned>(__float_as_int(low)) >> 16 | (static_cast<unsigned>(__float_as_int(high)) & 0xffff0000u));
// === wrong_rounds_up: 3: To the nearest, ties to even
// EXERCISE-BEGIN 3: Ties away from zero.
const unsigned a = static_cast<unsigned>(__float_as_int(low)) + 0x8000, b = static_cast<unsigned>(__float_as_int(high)) + 0x8000;
return static_cast<int>(a >> 16 | (b & 0xffff0000u));
// === wrong_minus_one_is_an_expert: 4: -1 is none
// EXERCISE-BEGIN 4: -1 / experts_per_rank is 0.
-        const int local = topk_idx[first + k] - rank * experts_per_rank;
-        if (local >= 0 && local < experts_per_rank) sum = __fadd_rn(sum, topk_weights[first + k]);
+        if (topk_idx[first + k] / experts_per_rank == rank) sum = __fadd_rn(sum, topk_weights[first + k]);
// === wrong_first_expert_only: 4: the weight on rank 0 is
// EXERCISE-BEGIN 4: A token may have two experts on a rank.
const int64_t first = static_cast<int64_t>(token) * top_k;
for (int k = 0; k < top_k; ++k) {
    const int local = topk_idx[first + k] - rank * experts_per_rank;
    if (local >= 0 && local < experts_per_rank) return topk_weights[first + k];
}
return 0.0f;
// === wrong_last_first: 4: added from the first to the last
// EXERCISE-BEGIN 4: Added from the last to the first.
-    for (int k = 0; k < top_k; ++k) {
+    for (int k = top_k - 1; k >= 0; --k) {
// === wrong_adds_zero: 2: the two halves of word 0x8000
// EXERCISE-BEGIN 2a: Computes where bits need to move: -0 becomes 0.
return __fadd_rn(__int_as_float(word << 16), 0.0f);
// === wrong_skips_zeros: 1: add_weighted(-0
// EXERCISE-BEGIN 1: Leaves a product of 0 out: -0 and 0 are 0.
const float p = __fmul_rn(weight, value); return p == 0.0f ? sum : __fadd_rn(sum, p);
// === wrong_borrows: 2: the two halves of word 0x
// EXERCISE-BEGIN 2b: A lower half of zero borrows from the upper one.
return __int_as_float((word - 1) & 0xffff0000);
// === wrong_experts_of_8_bits: 4: the weight on rank
// EXERCISE-BEGIN 4: Numbers of experts above 127 are others.
-        const int local = topk_idx[first + k] - rank * experts_per_rank;
+        const int local = static_cast<signed char>(topk_idx[first + k]) - rank * experts_per_rank;
// === wrong_waits_for_its_warp: 1, 3: wait in __syncwarp
// EXERCISE-BEGIN 1: Each thread adds for itself; this one waits for its warp.
+    __syncwarp();
     return __fadd_rn(sum, __fmul_rn(weight, value));
// === wrong_token_of_16_bits: 4: KernelFault|the weight on rank
// EXERCISE-BEGIN 4: Tokens from 32768 on are others.
-    const int64_t first = static_cast<int64_t>(token) * top_k;
+    const int64_t first = static_cast<int64_t>(static_cast<int16_t>(token)) * top_k;
// === wrong_expert_twice_is_one: 4: the weight on rank
// EXERCISE-BEGIN 4: What a token names twice it weighs twice.
         const int local = topk_idx[first + k] - rank * experts_per_rank;
+        if (k > 0 && topk_idx[first + k] == topk_idx[first + k - 1]) continue;
