// A group whose outlier is negative.
// EXERCISE-BEGIN 1
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) {
    if (fabsf(values[i]) <= kFp8LargestFloat) largest = fmaxf(largest, values[i]);
}
for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
}
return largest;
// EXERCISE-END 1
