// What the test of 04_proxy_ring calls of the piece.
#include "piece.cuh"
#include <ep/proxy_command.cuh>

PIECE(bool, proxy_wait_for_room, (const ep::ProxyRing& ring, uint64_t number, int peer),
      ep::proxy_wait_for_room(ring, number, peer))
PIECE(void, proxy_fill, (const ep::ProxyRing& ring, const ep::ProxyCommand& command, uint64_t number),
      ep::proxy_fill(ring, command, number))
PIECE(bool, proxy_push, (const ep::ProxyRing& ring, const ep::ProxyCommand& command, uint64_t* number),
      ep::proxy_push(ring, command, number))
PIECE(bool, proxy_push_warp, (const ep::ProxyRing& ring, const ep::ProxyCommand& command, int count, uint64_t* number),
      ep::proxy_push_warp(ring, command, count, number))
PIECE(bool, proxy_wait, (const ep::ProxyRing& ring, uint64_t number), ep::proxy_wait(ring, number))
PIECE(bool, proxy_flush, (const ep::ProxyRing& ring), ep::proxy_flush(ring))
