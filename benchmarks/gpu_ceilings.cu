// How fast bytes can cross if every GPU sends to all others at once and waits for nothing (gpu_ceilings.py).
#include <ep/tma.cuh>
#include <ep/put.cuh>

// Piece `i` of what a rank sends goes to each of the others in turn, into this rank's own part of its memory.
struct Piece {
    int peer;
    size_t offset;  // in `mine` of the peer, which is written or read
};
EP_DEVICE Piece piece_of(size_t i, size_t piece_bytes, size_t bytes_each) {
    const int others = ep::num_ranks() - 1, turn = static_cast<int>(i % others);
    const int peer = (ep::rank() + 1 + turn) % ep::num_ranks();
    return {peer, ep::rank() * bytes_each + i / others * piece_bytes};
}

// Plain: one warp per piece, 16-byte loads and stores, `kUnroll` in flight. `mine` [ranks, bytes_each] symmetric, `data` and
// `out` [bytes_each].
template <int kUnroll>
EP_DEVICE void all_pieces(char* mine, const char* data, char* out, size_t piece_bytes, size_t bytes_each,
                          uint32_t* counter) {
    const size_t pieces = bytes_each / piece_bytes * (ep::num_ranks() - 1);
    size_t dealt = ep::warp_id() * gridDim.x + blockIdx.x;
    for (;;) {
        size_t i = dealt;
        dealt += gridDim.x * ep::warps_in_block();
        if (counter) {
            if (ep::lane_id() == 0) i = ep::atom_add_relaxed_gpu_u32(counter, 1);
            i = __shfl_sync(ep::kFullWarp, static_cast<unsigned>(i), 0);
        }
        if (i >= pieces) return;
        const Piece piece = piece_of(i, piece_bytes, bytes_each);
        char* const far = ep::peer_ptr(mine + piece.offset, piece.peer);
        const size_t near = i / (ep::num_ranks() - 1) * piece_bytes;
        if (out) {
            ep::copy_bytes<kUnroll>(out + near, far, piece_bytes, ep::lane_id(), ep::kWarpSize);
        } else {
            ep::copy_bytes<kUnroll>(far, data + near, piece_bytes, ep::lane_id(), ep::kWarpSize);
        }
    }
}
extern "C" __global__ void __launch_bounds__(1024)
    plain_all(char* mine, const char* data, char* out, size_t piece_bytes, size_t bytes_each, uint32_t* counter) {
    all_pieces<4>(mine, data, out, piece_bytes, bytes_each, counter);
}

// The same with TMA, `stages` pieces in flight per warp. With `out`: from the peers into `out`.
extern "C" __global__ void bulk_all(char* mine, const char* data, char* out, size_t piece_bytes, size_t bytes_each,
                                    int stages, uint32_t* counter) {
    extern __shared__ int4 shared[];
    __shared__ size_t piece_in[32][8];
    char* const pieces_here = reinterpret_cast<char*>(shared) + ep::warp_id() * stages * piece_bytes;
    uint64_t* const barriers =
        reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(shared) + ep::warps_in_block() * stages * piece_bytes);
    ep::TmaRing ring(barriers + ep::warp_id() * stages, stages);
    const size_t others = ep::num_ranks() - 1, pieces = bytes_each / piece_bytes * others;
    const size_t step = gridDim.x * ep::warps_in_block(), first = ep::warp_id() * gridDim.x + blockIdx.x;
    const auto far = [&](size_t i) {
        const Piece piece = piece_of(i, piece_bytes, bytes_each);
        return ep::peer_ptr(mine + piece.offset, piece.peer);
    };
    const auto load = [&](int stage, size_t i) {
        const char* const source = out ? far(i) : data + i / others * piece_bytes;
        ep::tma_load(pieces_here + stage * piece_bytes, source, piece_bytes, ring.barriers + stage);
        ep::tma_arrive(ring.barriers + stage, piece_bytes);
    };
    size_t dealt = first;
    const auto fill = [&](int stage) {
        size_t i = dealt;
        dealt += step;
        if (counter) {
            if (ep::lane_id() == 0) i = ep::atom_add_relaxed_gpu_u32(counter, 1);
            i = __shfl_sync(ep::kFullWarp, static_cast<unsigned>(i), 0);
        }
        if (ep::lane_id() == 0) piece_in[ep::warp_id()][stage] = i;
        if (i < pieces) load(stage, i);
        __syncwarp();
    };
    for (int stage = 0; stage < stages; ++stage) fill(stage);
    int previous = -1;
    for (;;) {
        const size_t i = piece_in[ep::warp_id()][ring.stage];
        if (i >= pieces) break;
        ring.wait();
        ep::tma_store(out ? out + i / others * piece_bytes : far(i), pieces_here + ring.stage * piece_bytes,
                      piece_bytes);
        ep::tma_commit();
        if (previous >= 0) {
            ep::tma_wait_read<1>();
            fill(previous);
        }
        previous = ring.stage;
        ring.next();
    }
    ep::tma_wait_written<0>();
}
