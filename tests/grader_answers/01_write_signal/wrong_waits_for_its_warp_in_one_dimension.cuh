// One thread that waits for its warp, in launches that look as if all lanes were here: it waits for others elsewhere.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
if (blockDim.y == 1) __syncwarp();
signal_add(signal, increment, peer);
// EXERCISE-END 1
