// The peer and the queue pair stay those of the command before.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + number % ring.num_slots;
slot->target = command.target;
slot->source = command.source;
slot->bytes = command.bytes;
slot->signal = command.signal;
slot->value = command.value;
slot->op = command.op;
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
