// The first command has number 0, which is told as any other.
// EXERCISE-BEGIN 3
const uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (number != nullptr && mine) *number = mine;
if (!proxy_wait_for_room(ring, mine, command.peer)) return false;
proxy_fill(ring, command, mine);
return true;
// EXERCISE-END 3
