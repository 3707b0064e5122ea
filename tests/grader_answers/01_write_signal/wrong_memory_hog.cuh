// Takes memory until it is stopped.
// EXERCISE-BEGIN top
static volatile char ep_hog[33ull << 26];  // each rank has one: with more, their sum meets the limit of address space
// EXERCISE-END top
// EXERCISE-BEGIN 3
for (size_t i = 0; i < sizeof(ep_hog); i += 4096) ep_hog[i] = 1;
for (volatile uint64_t turns = 0;;) turns = turns + 1;
// EXERCISE-END 3
