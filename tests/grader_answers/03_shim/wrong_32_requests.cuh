// Each lane posts its share: thirty-two requests.
// EXERCISE-BEGIN 3
const size_t share = (bytes + 31) / 32, begin = share * lane_id, end = begin + share < bytes ? begin + share : bytes;
if (begin < end) ep::net_put_nbi(static_cast<char*>(remote) + begin, static_cast<const char*>(local) + begin, end - begin, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// EXERCISE-END 3
