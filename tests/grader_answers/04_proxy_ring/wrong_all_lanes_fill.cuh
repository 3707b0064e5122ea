// Also the lanes that have no command.
// EXERCISE-BEGIN 4
const int lane = lane_id();
unsigned long long first = 0;
int ok = 1;
if (lane == 0) {
    first = atom_add_relaxed_gpu_u64(&ring.producer->head, 32);
    ok = proxy_wait_for_room(ring, first + 31, command.peer);
}
first = __shfl_sync(kFullWarp, first, 0);
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (number != nullptr) *number = first + lane;
if (ok) proxy_fill(ring, command, first + lane);
return ok;
// EXERCISE-END 4
