// 0 - 1 in 64 bits: the first message waits for ever.
// EXERCISE-BEGIN 1a
return message + 1 - ring.num_slots;
// EXERCISE-END 1a
