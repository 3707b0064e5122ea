// Into one's own memory.
    // EXERCISE-BEGIN 1
    for (int i = threadIdx.x; i < count; i += blockDim.x) box[i] = numbers[i];
    // EXERCISE-END 1
