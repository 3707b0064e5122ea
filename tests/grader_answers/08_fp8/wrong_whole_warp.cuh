// One scale for all 512 elements of the warp.
// EXERCISE-BEGIN 1
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) {
    const float magnitude = fabsf(values[i]);
    if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
}
for (int step = 1; step < kWarpSize; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
}
return largest;
// EXERCISE-END 1
