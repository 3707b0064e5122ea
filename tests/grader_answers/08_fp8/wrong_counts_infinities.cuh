// fmaxf ignores NaN, but infinity is larger than everything.
// EXERCISE-BEGIN 1
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) largest = fmaxf(largest, fabsf(values[i]));
for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
}
return largest;
// EXERCISE-END 1
