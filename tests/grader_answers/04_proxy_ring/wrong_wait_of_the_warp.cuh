// One thread waits, and the other lanes are somewhere else.
// EXERCISE-BEGIN 5a
__syncwarp();
return detail::proxy_wait_for(ring, number + 1);
// EXERCISE-END 5a
