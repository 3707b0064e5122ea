// In this rank's own memory.
// EXERCISE-BEGIN 4
(void)to;
return rows + static_cast<int64_t>(index) * row_vectors;
// EXERCISE-END 4
