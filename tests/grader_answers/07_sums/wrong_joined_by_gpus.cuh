// One operation wherever the compiler may join them, as GPUs' compilers do.
// EXERCISE-BEGIN 1
const float product = weight * value;
return sum + product;
// EXERCISE-END 1
