// Says number, not number + 1: an empty slot looks like command 0.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
slot->target = c.target;
slot->source = c.source;
slot->bytes = c.bytes;
slot->signal = c.signal;
slot->value = c.value;
slot->op = c.op;
slot->peer = c.peer;
slot->queue_pair = c.queue_pair;
st_release_sys_u64(&slot->number, number);
// EXERCISE-END 2
