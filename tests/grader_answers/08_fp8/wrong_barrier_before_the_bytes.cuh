// One warp calls, and waits for all warps when it has its scale.
    // EXERCISE-BEGIN 4
    float values[kFp8Elements];
    bfloat16_to_float(first, values);
    bfloat16_to_float(second, values + kFp8Elements / 2);
    *scale = fp8_scale(fp8_group_largest(values));
    __syncthreads();
    int words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const float* const v = values + 4 * w;
        words[w] = static_cast<int>(fp8_pair(v[0], v[1], *scale) | fp8_pair(v[2], v[3], *scale) << 16);
    }
    return make_int4(words[0], words[1], words[2], words[3]);
    // EXERCISE-END 4
