// The waits of <ep/wait.cuh>; a flush that waits for the last command.
// EXERCISE-BEGIN 1
const uint64_t needed = number < ring.num_slots ? 0 : number - ring.num_slots + 1;
return wait_until_ge(&ring.credits->taken, needed, {kPhaseProxy, peer, int64_t(number % ring.num_slots)});
// EXERCISE-END 1
// EXERCISE-BEGIN 3
uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (number) *number = mine;
const bool ok = proxy_wait_for_room(ring, mine, command.peer);
if (ok) proxy_fill(ring, command, mine);
return ok;
// EXERCISE-END 3
// EXERCISE-BEGIN 5b
const uint64_t pushed = ld_relaxed_gpu_u64(&ring.producer->head);
return pushed == 0 || proxy_wait(ring, pushed - 1);
// EXERCISE-END 5b
