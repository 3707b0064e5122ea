// A lower half of zero borrows from the upper one.
// EXERCISE-BEGIN 2b
return __int_as_float((word - 1) & 0xffff0000);
// EXERCISE-END 2b
