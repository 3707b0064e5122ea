// `number` may be null, and is where nobody asks for it.
// EXERCISE-BEGIN 3
*number = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (!proxy_wait_for_room(ring, *number, command.peer)) return false;
proxy_fill(ring, command, *number);
return true;
// EXERCISE-END 3
