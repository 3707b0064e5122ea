// All lanes store, those beyond the end too.
// EXERCISE-BEGIN 5
const int vectors = hidden / kFp8Elements;
for (int base = 0; base < vectors; base += kWarpSize) {
    const int i = base + lane_id();
    int4 first = {}, second = {};
    if (i < vectors) {
        first = ld_nc_v4(row + 2 * i);
        second = ld_nc_v4(row + 2 * i + 1);
    }
    float scale;
    st_na_v4(numbers + i, quantize_fp8(first, second, &scale));
    if (i < vectors && i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
}
// EXERCISE-END 5
