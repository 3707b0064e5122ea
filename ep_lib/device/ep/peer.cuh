// Who am I, and where is my peer's copy of this array?
//
// Every rank has one symmetric heap of the same size. A symmetric array lies at the same offset in all of them, so one
// subtraction and one addition turn a pointer to mine into a pointer to any peer's:
//
//     heap of rank 0   [ header | ... A ... ]        peer_ptr(A, 1) = A - heap_base(0) + heap_base(1)
//     heap of rank 1   [ header | ... A ... ]
//
// No kernel argument is needed. One function for all peer addressing is an idea of DeepGEMM's (layout/sym_buffer.cuh).
#pragma once
#include <ep/platform.cuh>

namespace ep {

EP_DEVICE int rank() { return detail::rank(); }

EP_DEVICE int num_ranks() { return detail::num_ranks(); }

// True if `pointer` points into this rank's own symmetric heap.
EP_DEVICE bool in_heap(const void* pointer) {
    const uint64_t offset = reinterpret_cast<uint64_t>(pointer) - reinterpret_cast<uint64_t>(detail::heap_base(rank()));
    return offset < detail::heap_bytes();  // a pointer below the heap wraps around to a huge offset
}

// The peer's copy of what `mine` points to in this rank's symmetric heap. `peer` may be this rank itself. Not checked,
// because it is used in inner loops; `in_heap(mine)` checks.
template <typename T>
EP_DEVICE T* peer_ptr(T* mine, int peer) {
    const uint64_t offset = reinterpret_cast<uint64_t>(mine) - reinterpret_cast<uint64_t>(detail::heap_base(rank()));
    return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(detail::heap_base(peer)) + offset);
}

}  // namespace ep
