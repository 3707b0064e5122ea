// -1 / experts_per_rank is 0, which is a rank.
// EXERCISE-BEGIN 1
uint64_t bits = 0;
for (int k = 0; k < count; ++k) {
    if (choices[k] / my.experts_per_rank == r) bits |= 1ull << (choices[k] & 63) % my.experts_per_rank;
}
return bits;
// EXERCISE-END 1
