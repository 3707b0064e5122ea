// One look at the credit, for the first lane's slot: the others may be full.
// EXERCISE-BEGIN 4
const int lane = lane_id();
unsigned long long first = 0;
int ok = 1;
if (lane == 0 && count > 0) {
    first = atom_add_relaxed_gpu_u64(&ring.producer->head, count);
    ok = proxy_wait_for_room(ring, first, command.peer);
}
first = __shfl_sync(kFullWarp, first, 0);
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (number != nullptr) *number = first + lane;
if (ok && lane < count) proxy_fill(ring, command, first + lane);
return ok;
// EXERCISE-END 4
