// EXERCISE-BEGIN 1
return chunk + 1 - ring.num_slots;
// EXERCISE-END 1
