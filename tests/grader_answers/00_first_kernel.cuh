// === right_backwards
    // EXERCISE-BEGIN 1: Another order of the numbers, and a fence with a relaxed addition in place of the release.
    int* const theirs = ep::peer_ptr(box, peer);
    for (int i = count - 1 - (int)threadIdx.x; i >= 0; i -= (int)blockDim.x) theirs[i] = numbers[i];
    // EXERCISE-BEGIN 2
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        ep::fence_sys();
        ep::atom_add_relaxed_sys_u64(ep::peer_ptr(flag, peer), 1);
    }
// === right_chunks
    // EXERCISE-BEGIN 1: Each thread writes a part of its own.
    const int each = (count + blockDim.x - 1) / blockDim.x;
    for (int i = threadIdx.x * each; i < (threadIdx.x + 1) * each && i < count; ++i) {
        ep::peer_ptr(box + i, peer)[0] = numbers[i];
    }
// === wrong_own_box: 1: of 64 numbers in the peer's box are wrong|nobody should have written to
    // EXERCISE-BEGIN 1: Into one's own memory.
    for (int i = threadIdx.x; i < count; i += blockDim.x) box[i] = numbers[i];
// === wrong_one_each: 1: of 200 numbers in the peer's box are wrong
    // EXERCISE-BEGIN 1: As many numbers as threads, and no more.
    if (threadIdx.x < count) ep::peer_ptr(box, peer)[threadIdx.x] = numbers[threadIdx.x];
// === wrong_past_the_end: 1: words before or behind the box were overwritten
    // EXERCISE-BEGIN 1: `count` is not looked at.
    for (int i = threadIdx.x; i <= count; i += blockDim.x) ep::peer_ptr(box, peer)[i] = numbers[0];
// === wrong_everybody_tells: 2: once is right
    // EXERCISE-BEGIN 2: A signal from each thread.
    ep::signal_add(flag, 1, peer);
// === wrong_no_barrier: 2: a receiver that had seen the signal|A barrier that all threads of the block reach first
    // EXERCISE-BEGIN 2: Thread 0 does not wait for the others.
    if (threadIdx.x == 0) ep::signal_add(flag, 1, peer);
// === wrong_barrier_of_one_thread: 2: of both, and at its last one met 1 of 64 threads
    // EXERCISE-BEGIN 2: There is a barrier, and only the thread that signals reaches it.
    if (threadIdx.x == 0) {
        __syncthreads();
        ep::signal_add(flag, 1, peer);
    }
// === wrong_own_flag: 2: KernelFault
    // EXERCISE-BEGIN 2: Translated twice.
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_add(ep::peer_ptr(flag, peer), 1, peer);
// === wrong_sets_the_flag: 2: set to 1 instead of growing by it
// EXERCISE-BEGIN 2: A store of 1: right for the first who tells.
__syncthreads();
if (threadIdx.x == 0) ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1);
// === wrong_index_of_16_bits: 1: KernelFault
// EXERCISE-BEGIN 1: Places above 32767 have no number.
for (short i = threadIdx.x; i < count; i += blockDim.x) ep::peer_ptr(box, peer)[i] = numbers[i];
// === wrong_load_and_store: 2: stores were made to a flag
// EXERCISE-BEGIN 2: What another rank adds between the two is lost.
__syncthreads();
if (threadIdx.x == 0) {
    uint64_t* const theirs = ep::peer_ptr(flag, peer);
    ep::st_release_sys_u64(theirs, ep::ld_acquire_sys_u64(theirs) + 1);
}
// === wrong_vectors: 1: an address that is not a multiple of 16
// EXERCISE-BEGIN 1: Memory of int begins at a multiple of 4 bytes.
if (count % 4 == 0) {
    int4* const to = reinterpret_cast<int4*>(ep::peer_ptr(box, peer));
    for (int i = threadIdx.x; i < count / 4; i += blockDim.x) to[i] = reinterpret_cast<const int4*>(numbers)[i];
} else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) ep::peer_ptr(box, peer)[i] = numbers[i];
}
// === wrong_no_zeros: 1: numbers in the peer's box are wrong
    // EXERCISE-BEGIN 1: A 0 is a number, too.
    for (int i = threadIdx.x; i < count; i += blockDim.x) if (numbers[i]) ep::peer_ptr(box, peer)[i] = numbers[i];
