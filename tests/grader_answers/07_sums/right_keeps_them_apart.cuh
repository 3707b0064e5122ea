// Only the product says how it rounds: it is joined to nothing then.
// EXERCISE-BEGIN 1
return sum + __fmul_rn(weight, value);
// EXERCISE-END 1
