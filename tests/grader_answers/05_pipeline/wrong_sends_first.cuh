// The whole stream, and then the peer's: both wait for credits, and no one receives.
// EXERCISE-BEGIN 5
send_pipelined(streams, ring, peer);
receive_pipelined(streams, ring, peer);
// EXERCISE-END 5
