// The number, and then the command that it announces.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
st_release_sys_u64(&slot->number, number + 1);
slot->target = command.target;
slot->source = command.source;
slot->bytes = command.bytes;
slot->signal = command.signal;
slot->value = command.value;
slot->op = command.op;
slot->peer = command.peer;
slot->queue_pair = command.queue_pair;
// EXERCISE-END 2
