// The next kernel finds the count of this one.
// EXERCISE-BEGIN 3
const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;
if (thread_in_block() == 0) {
    fence_sys();
    const uint32_t count = atom_add_acq_rel_gpu_u32(finished_blocks, mine) + mine;
    last = count % kFailedBlock != blocks ? LastBlock::kNo
           : count < kFailedBlock         ? LastBlock::kYes
                                          : LastBlock::kAfterFailure;
}
__syncthreads();
return last;
// EXERCISE-END 3
