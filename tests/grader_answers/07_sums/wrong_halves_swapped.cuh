// The first number is in the lower half.
// EXERCISE-BEGIN 2a
return __int_as_float(word & 0xffff0000);
// EXERCISE-END 2a
// EXERCISE-BEGIN 2b
return __int_as_float(word << 16);
// EXERCISE-END 2b
