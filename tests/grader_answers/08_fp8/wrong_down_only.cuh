// __shfl_down brings the largest to the first lane of the group only.
// EXERCISE-BEGIN 1
float largest = 0.0f;
for (int i = 0; i < kFp8Elements; ++i) {
    const float magnitude = fabsf(values[i]);
    if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
}
for (int step = 4; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_down_sync(kFullWarp, largest, step));
}
return largest;
// EXERCISE-END 1
