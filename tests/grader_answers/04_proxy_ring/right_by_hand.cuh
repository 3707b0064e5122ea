// Raw polling, and word by word.
// EXERCISE-BEGIN 1
(void)peer;
while (ld_acquire_sys_u64(&ring.credits->taken) + ring.num_slots <= number) {
}
return true;
// EXERCISE-END 1
// EXERCISE-BEGIN 2
ProxyCommand* const slot = &ring.slots[number % ring.num_slots];
const uint64_t* const from = reinterpret_cast<const uint64_t*>(&command);
uint64_t* const to = reinterpret_cast<uint64_t*>(slot);
for (int i = 0; i < 6; ++i) to[i] = from[i];
__threadfence_system();
st_relaxed_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
// EXERCISE-BEGIN 4
const int lane = lane_id();
unsigned long long first = 0;
if (lane == 0 && count > 0) first = atomicAdd(reinterpret_cast<unsigned long long*>(&ring.producer->head), count);
first = __shfl_sync(kFullWarp, first, 0);
bool ok = true;
if (lane < count) ok = proxy_wait_for_room(ring, first + lane, command.peer);
if (number != nullptr) *number = first + lane;
if (ok && lane < count) proxy_fill(ring, command, first + lane);
return __all_sync(kFullWarp, ok) != 0;
// EXERCISE-END 4
// EXERCISE-BEGIN 5a
while (ld_acquire_sys_u64(&ring.credits->completed) <= number) {
}
return true;
// EXERCISE-END 5a
