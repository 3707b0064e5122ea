// Too small a scale becomes the least one, not 1.
// EXERCISE-BEGIN 2
return fmaxf(__fdiv_rn(largest, kFp8Max), kFp8LeastScale);
// EXERCISE-END 2
