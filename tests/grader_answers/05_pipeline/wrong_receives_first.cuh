// The peer's stream, and then its own: both wait for the first chunk.
// EXERCISE-BEGIN 5
receive_pipelined(streams, ring, peer);
send_pipelined(streams, ring, peer);
// EXERCISE-END 5
