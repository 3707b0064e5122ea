// === right_by_hand
// Everything through shared or local bytes, one number at a time; the lanes of a group elect the lane that stores.
// EXERCISE-BEGIN 1
float best = 0.0f;
for (int i = 0; i < 16; ++i) {
    if (isfinite(values[i]) && fabsf(values[i]) > best) best = fabsf(values[i]);
}
for (int other = 0; other < 8; ++other) {
    const float theirs = __shfl_sync(kFullWarp, best, lane_id() / 8 * 8 + other);
    if (theirs > best) best = theirs;
}
return best;
// EXERCISE-BEGIN 2
const float scale = largest / 448.0f;
if (scale >= 1.17549435e-38f) return scale;
return 1.0f;
// EXERCISE-BEGIN 3
float divided[2] = {first / scale, second / scale};
if (!isfinite(first)) divided[0] = nanf("");
if (!isfinite(second)) divided[1] = nanf("");
const unsigned low = __nv_cvt_float_to_fp8(divided[0], __NV_SATFINITE, __NV_E4M3);
const unsigned high = __nv_cvt_float_to_fp8(divided[1], __NV_SATFINITE, __NV_E4M3);
return low | high << 8;
// EXERCISE-BEGIN 4
float values[16];
bfloat16_to_float(first, values);
bfloat16_to_float(second, values + 8);
*scale = fp8_scale(fp8_group_largest(values));
alignas(16) uint8_t bytes[16];
for (int i = 0; i < 16; i += 2) {
    const unsigned pair = fp8_pair(values[i], values[i + 1], *scale);
    bytes[i] = static_cast<uint8_t>(pair);
    bytes[i + 1] = static_cast<uint8_t>(pair >> 8);
}
return *reinterpret_cast<const int4*>(bytes);
// EXERCISE-BEGIN 5
for (int at = 0; at < hidden; at += 16 * kWarpSize) {
    const int mine = at + 16 * lane_id();
    const bool exists = mine < hidden;
    const int4* from = row + (exists ? mine / 8 : 0);
    float scale;
    const int4 result = quantize_fp8(from[0], from[1], &scale);
    if (!exists) continue;
    numbers[mine / 16] = result;
    if (mine / 16 % 8 == 7) scales[mine / 128] = scale;
}
// === right_groups_in_turn
// EXERCISE-BEGIN 1: A group at a time for the scale, halves of the warp for the rest.
float largest = 0.0f;
for (int i = 15; i >= 0; --i) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude < __int_as_float(0x7f800000) ? fmaxf(largest, magnitude) : largest;
}
for (int step = 4; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
return largest;
// EXERCISE-BEGIN 5
const int vectors = hidden / 16;
for (int round = 0; round * kWarpSize < vectors; ++round) {
    const int i = round * kWarpSize + lane_id();
    const int safe = min(i, vectors - 1);  // lanes behind the end repeat the last vector
    float scale;
    const int4 v = quantize_fp8(row[2 * safe], row[2 * safe + 1], &scale);
    if (i < vectors) numbers[i] = v;
    if (i < vectors && lane_id() % 8 == 0) scales[i / 8] = scale;
}
// === wrong_leaves_zeros_out: 5: elements of zeros of both signs are wrong
// EXERCISE-BEGIN 5: Zeros are numbers, too.
-            st_na_v4(numbers + i, v);
+            if (v.x | v.y | v.z | v.w) st_na_v4(numbers + i, v);
// === wrong_counts_infinities: 1, 4, 5: only of finite numbers
// EXERCISE-BEGIN 1: fmaxf ignores NaN, but infinity is larger than everything.
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) largest = fmaxf(largest, fabsf(values[i]));
for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
}
return largest;
// === wrong_whole_warp: 1, 4, 5: only among the eight lanes of the group
// EXERCISE-BEGIN 1: One scale for all 512 elements of the warp.
     float largest = 0.0f;
-#pragma unroll
@@
-#pragma unroll
-    for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
+for (int step = 1; step < kWarpSize; step *= 2) {
// === wrong_down_only: 1, 4, 5: results of ordinary numbers are wrong
// EXERCISE-BEGIN 1: __shfl_down brings the largest to the first lane of the group only.
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) {
    const float magnitude = fabsf(values[i]);
    if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
}
for (int step = 4; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_down_sync(kFullWarp, largest, step));
}
return largest;
// === wrong_signed: 1, 4, 5: Only magnitudes
// EXERCISE-BEGIN 1: A group whose outlier is negative.
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) {
    if (fabsf(values[i]) <= kFp8LargestFloat) largest = fmaxf(largest, values[i]);
}
for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
}
return largest;
// === wrong_zero_scale: 2, 4, 5: 1 if that is below kFp8LeastScale
// EXERCISE-BEGIN 2: A group of zeros: 0 / 0.
return __fdiv_rn(largest, kFp8Max);
// === wrong_inverse_scale: 2, 4, 5: The largest magnitude over 448
// EXERCISE-BEGIN 2: What to multiply by, instead of what to divide by.
return largest == 0.0f ? 1.0f : __fdiv_rn(kFp8Max, largest);
// === wrong_least_scale: 2, 4, 5: the first in lane 0: 1.17549e-38
// EXERCISE-BEGIN 2: Too small a scale becomes the least one, not 1.
return fmaxf(__fdiv_rn(largest, kFp8Max), kFp8LeastScale);
// === wrong_reciprocal: 3, 4, 5: Divide (no reciprocal)
// EXERCISE-BEGIN 3: Rounds twice: now and then one unit off.
const float factor = __fdiv_rn(1.0f, scale);
const auto divided = [factor](float value) {
    return fabsf(value) <= kFp8LargestFloat ? value * factor : __int_as_float(0x7fffffff);
};
return __nv_cvt_float2_to_fp8x2(make_float2(divided(first), divided(second)), __NV_SATFINITE, __NV_E4M3);
// === wrong_infinity_becomes_448: 3, 4, 5: NaN for what is not finite
// EXERCISE-BEGIN 3: __NV_SATFINITE turns infinity into the largest number.
const float2 divided = make_float2(__fdiv_rn(first, scale), __fdiv_rn(second, scale));
return __nv_cvt_float2_to_fp8x2(divided, __NV_SATFINITE, __NV_E4M3);
// === wrong_bytes_swapped: 3, 4, 5: the first number in the lower byte
// EXERCISE-BEGIN 3: The first number in the upper byte.
-    return __nv_cvt_float2_to_fp8x2(make_float2(divided(first), divided(second)), __NV_SATFINITE, __NV_E4M3);
+    return __nv_cvt_float2_to_fp8x2(make_float2(divided(second), divided(first)), __NV_SATFINITE, __NV_E4M3);
// === wrong_e5m2: 3, 4, 5: pairs of ordinary numbers are wrong
// EXERCISE-BEGIN 3: The other FP8 type: more range, one bit less.
-    return __nv_cvt_float2_to_fp8x2(make_float2(divided(first), divided(second)), __NV_SATFINITE, __NV_E4M3);
+    return __nv_cvt_float2_to_fp8x2(make_float2(divided(first), divided(second)), __NV_SATFINITE, __NV_E5M2);
// === wrong_halves_swapped: 4, 5: Element i is byte i
// EXERCISE-BEGIN 4: Elements 2 and 3 before 0 and 1.
-#pragma unroll
@@
-        words[w] = static_cast<int>(fp8_pair(v[0], v[1], *scale) | fp8_pair(v[2], v[3], *scale) << 16);
+    words[w] = static_cast<int>(fp8_pair(v[2], v[3], *scale) | fp8_pair(v[0], v[1], *scale) << 16);
// === wrong_leaves_early: 5: All 32 lanes call quantize_fp8 in every round
// EXERCISE-BEGIN 5: Lanes beyond the end of the row leave, and the shuffles of the others wait for them.
const int vectors = hidden / kFp8Elements;
for (int i = lane_id(); i < vectors; i += kWarpSize) {
    float scale;
    st_na_v4(numbers + i, quantize_fp8(ld_nc_v4(row + 2 * i), ld_nc_v4(row + 2 * i + 1), &scale));
    if (i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
}
// === wrong_every_lane_stores_the_scale: 5: one lane of eight stores the scale
// EXERCISE-BEGIN 5: Eight lanes store one scale: the same value, and still eight stores, over NVLink too.
-            if (i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
+            scales[i / kFp8LanesPerGroup] = scale;
// === wrong_stores_behind_the_end: 5: each stores what exists
// EXERCISE-BEGIN 5: All lanes store, those beyond the end too.
-        const int4 v = quantize_fp8(first, second, &scale);
-        if (i < vectors) {
-            st_na_v4(numbers + i, v);
-            if (i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
+        st_na_v4(numbers + i, quantize_fp8(first, second, &scale));
+        if (i < vectors && i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
@@
         }
-    }
// === wrong_one_round: 5: scales of|elements of
// EXERCISE-BEGIN 5: 512 elements, and no more.
const int i = lane_id();
int4 first = {}, second = {};
if (i < hidden / kFp8Elements) {
    first = ld_nc_v4(row + 2 * i);
    second = ld_nc_v4(row + 2 * i + 1);
}
float scale;
const int4 v = quantize_fp8(first, second, &scale);
if (i < hidden / kFp8Elements) {
    st_na_v4(numbers + i, v);
    if (i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
}
// === wrong_vector_of_8_bits: 5: elements of
// EXERCISE-BEGIN 5: Vector 256 of a row overwrites the first.
-            st_na_v4(numbers + i, v);
+            st_na_v4(numbers + static_cast<uint8_t>(i), v);
// === wrong_largest_float_is_none: 1, 3: of numbers as large as kFp8LargestFloat are wrong
// EXERCISE-BEGIN 1: The largest float32 is finite.
-        if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
+        if (magnitude < kFp8LargestFloat) largest = fmaxf(largest, magnitude);
// EXERCISE-BEGIN 3
-        return fabsf(value) <= kFp8LargestFloat ? __fdiv_rn(value, scale) : __int_as_float(0x7fffffff);
+        return fabsf(value) < kFp8LargestFloat ? __fdiv_rn(value, scale) : __int_as_float(0x7fffffff);
// === wrong_barrier_of_the_block: 1, 4, 5: divergent barrier
// EXERCISE-BEGIN 1: One warp calls, and waits for all warps.
         if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
     }
+    __syncthreads();
// === wrong_barrier_before_the_bytes: 4, 5: divergent barrier
// EXERCISE-BEGIN 4: One warp calls, and waits for all warps when it has its scale.
     *scale = fp8_scale(fp8_group_largest(values));
+    __syncthreads();
// === wrong_row_of_16_bits: 5: scales of|elements of
// EXERCISE-BEGIN 5: Of a row of 65536 elements and more it casts the rest only.
-    const int vectors = hidden / kFp8Elements;
+    const int vectors = static_cast<uint16_t>(hidden) / kFp8Elements;
