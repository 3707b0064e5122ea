// Ties away from zero.
// EXERCISE-BEGIN 3
const unsigned a = static_cast<unsigned>(__float_as_int(low)) + 0x8000, b = static_cast<unsigned>(__float_as_int(high)) + 0x8000;
return static_cast<int>(a >> 16 | (b & 0xffff0000u));
// EXERCISE-END 3
