// The bits as a number.
// EXERCISE-BEGIN 2a
return static_cast<float>(word & 0xffff);
// EXERCISE-END 2a
