// Volatile in place of intrinsics where that is as good; rounding by integers.
// EXERCISE-BEGIN 2a
return __int_as_float(static_cast<int>(static_cast<unsigned>(word) << 16));
// EXERCISE-END 2a
// EXERCISE-BEGIN 2b
return __int_as_float(static_cast<int>(static_cast<unsigned>(word) >> 16 << 16));
// EXERCISE-END 2b
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
// EXERCISE-END 3
// EXERCISE-BEGIN 4
float sum = 0.0f;
for (int k = 0; k < top_k; ++k) {
    const int expert = topk_idx[static_cast<int64_t>(token) * top_k + k];
    if (expert < 0 || expert / experts_per_rank != rank) continue;
    sum = __fadd_rn(sum, topk_weights[static_cast<int64_t>(token) * top_k + k]);
}
return sum;
// EXERCISE-END 4
