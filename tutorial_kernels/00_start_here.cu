// The first kernels: two ranks greet each other, threads take numbers, and three ways to get it wrong.
//
// Kernel              What it shows
// greet               a write into the peer's memory, a signal, and the wait for the peer's
// take_a_number       in what order the threads of all ranks come; another seed, another order
// wait_for_ever       WRONG: waits for a signal that is never sent
// sum_every           WRONG with step 0: a loop that never ends
// write_past_the_end  WRONG: an index that does not fit
// pass_on             many numbers and one signal, by the two functions of exercise 00_first_kernel
#include <00_first_kernel.cuh>
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

// Two ranks of one thread each. `box` and `flag` are symmetric: every rank has its own.
extern "C" __global__ void greet(int* box, uint64_t* flag, int* heard) {
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(box, peer) = 100 + ep::rank();  // 1. the data, into the peer's memory
    ep::signal_add(flag, 1, peer);                // 2. the signal: "it is there"

    if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1})) return;  // 3. wait for it
    *heard = *box;                                                          // 4. then read
}

// Every thread of every rank takes the next number from one counter in rank 0's memory, and puts
// its rank into the list there.
extern "C" __global__ void take_a_number(uint32_t* counter, int* who) {
    const uint32_t turn = ep::atom_add_relaxed_sys_u32(ep::peer_ptr(counter, 0), 1);
    ep::peer_ptr(who, 0)[turn] = ep::rank();
}

// WRONG: without a limit, a wait for a signal that never comes lasts for ever.
extern "C" __global__ void wait_for_ever(const uint64_t* flag) {
    while (ep::read_signal(flag) == 0) {
    }
}

// Adds up x[0], x[step], x[2 * step], ... WRONG with step 0: the index never reaches n.
extern "C" __global__ void sum_every(const int* x, int n, int step, int* sum) {
    int total = 0;
    for (int i = 0; i < n; i += step) total += x[i];
    *sum = total;
}

// WRONG when n is larger than the array.
extern "C" __global__ void write_past_the_end(int* x, int n) {
    for (int i = 0; i < n; ++i) x[i] = i;
}

// One block. Writes `count` numbers into the box of rank `peer`, tells it, and takes what rank `from` has written into this
// rank's box. `box` and `flag` are symmetric.
extern "C" __global__ void pass_on(int* box, const int* numbers, int count, uint64_t* flag, int* out, int peer,
                                   int from) {
    write_numbers(box, numbers, count, peer);
    tell(flag, peer);
    if (!ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, from, -1})) return;
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = box[i];
}
