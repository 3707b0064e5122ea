// The proxy is on a CPU.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
slot->target = command.target;
slot->source = command.source;
slot->bytes = command.bytes;
slot->signal = command.signal;
slot->value = command.value;
slot->op = command.op;
slot->peer = command.peer;
slot->queue_pair = command.queue_pair;
st_release_gpu_u64(&slot->number, number + 1);
// EXERCISE-END 2
