// Computes where bits need to move: -0 becomes 0.
// EXERCISE-BEGIN 2a
return __fadd_rn(__int_as_float(word << 16), 0.0f);
// EXERCISE-END 2a
