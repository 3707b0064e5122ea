// Expert 256 is taken for expert 0.
// EXERCISE-BEGIN 1
uint64_t bits = 0;
for (int k = 0; k < count; ++k) {
    const int expert = static_cast<unsigned char>(choices[k]);
    if (choices[k] >= 0 && expert / my.experts_per_rank == r) bits |= 1ull << expert % my.experts_per_rank;
}
return bits;
// EXERCISE-END 1
