// The lower number is still in the upper one's bits.
// EXERCISE-BEGIN 2b
return __int_as_float(word);
// EXERCISE-END 2b
