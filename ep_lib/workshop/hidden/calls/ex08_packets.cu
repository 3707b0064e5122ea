#include <ep/packet.cuh>  // the piece of 08_packets, as its test calls it
#include "ex08_packets.cuh"
