// The number, and then the command that it announces.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
st_release_sys_u64(&slot->number, number + 1);
slot->target = c.target;
slot->source = c.source;
slot->bytes = c.bytes;
slot->signal = c.signal;
slot->value = c.value;
slot->op = c.op;
slot->peer = c.peer;
slot->queue_pair = c.queue_pair;
// EXERCISE-END 2
