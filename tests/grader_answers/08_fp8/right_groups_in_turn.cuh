// A group at a time for the scale, halves of the warp for the rest.
// EXERCISE-BEGIN 1
float largest = 0.0f;
for (int i = 15; i >= 0; --i) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude < __int_as_float(0x7f800000) ? fmaxf(largest, magnitude) : largest;
}
for (int step = 4; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
return largest;
// EXERCISE-END 1
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
// EXERCISE-END 5
