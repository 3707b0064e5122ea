// Command 256 takes slot 0 of 512.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + static_cast<uint8_t>(number % ring.num_slots);
slot->target = command.target;
slot->source = command.source;
slot->bytes = command.bytes;
slot->signal = command.signal;
slot->value = command.value;
slot->op = command.op;
slot->peer = command.peer;
slot->queue_pair = command.queue_pair;
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
