// Rounds toward zero.
// EXERCISE-BEGIN 3
return static_cast<int>(static_cast<unsigned>(__float_as_int(low)) >> 16 | (static_cast<unsigned>(__float_as_int(high)) & 0xffff0000u));
// EXERCISE-END 3
