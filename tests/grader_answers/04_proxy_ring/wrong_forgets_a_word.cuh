// The peer and the queue pair stay those of the command before.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
slot->target = c.target;
slot->source = c.source;
slot->bytes = c.bytes;
slot->signal = c.signal;
slot->value = c.value;
slot->op = c.op;
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
