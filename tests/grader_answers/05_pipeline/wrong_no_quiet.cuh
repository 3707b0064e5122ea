// The kernel ends while the NIC still reads from the staging buffer.
// EXERCISE-BEGIN 4
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    if (!wait_for_credit(ring, peer, chunk)) return;
    send_chunk(streams, ring, peer, chunk);
}
// EXERCISE-END 4
