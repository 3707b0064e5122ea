// The whole stream, and then the peer's: both wait for credits, and nobody receives.
// EXERCISE-BEGIN 5
send_pipelined(streams, ring, peer);
receive_pipelined(streams, ring, peer);
// EXERCISE-END 5
