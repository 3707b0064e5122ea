// NIXL's device API over direct stores to the peer: kernels written for NIXL compile and run here unchanged.
//
// Two generations of names share one core:
//   guide   nixlGpuPostSingleWriteXferReq, nixlGpuPostSignalXferReq, nixlGpuReadSignal on request handles, with the
//           signatures of the NIXL Device API Kernel Guide (tests/kernels/nixl_guide.cu has its kernels)
//   >= 1.0  nixlPut, nixlAtomicAdd, nixlGetPtr, nixlGpuGetXferStatus on memory views, with the signatures of
//           ai-dynamo/nixl, src/api/gpu/ucx/nixl_device.cuh
// The host side, which makes the handles, is ep_lib.compat.nixl.
//
// Who calls. A write or put at WARP or BLOCK level needs all threads of the warp or block, with equal arguments, and
// ends with that level's barrier, so that one thread may post the signal next. A signal or atomic add at any level is
// posted by the level's first thread (lane 0, thread 0), and others that call do nothing. It does NOT synchronise: the
// guide calls it at WARP level from lane 0 alone, inside `if (lane == 0)`, where a __syncwarp would wait for ever.
//
// Order. A signal is seen after all data that its thread posted before, or that a barrier put before it
// (<ep/signal.cuh>).
//
// Mistakes. A null handle, an index without an entry or a range outside the registered memory moves nothing: the first
// one is recorded as the rank's fault, which the host raises, and the newer API also returns an error. From then on
// this rank sends no signals either, so that no peer reads data that never came.
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>

#ifndef WARP_SIZE
#define WARP_SIZE 32  // the name the guide's kernels use
#endif

enum class nixl_gpu_level_t : uint64_t { THREAD = 0, WARP = 1, BLOCK = 2 };

using nixlGpuXferReqH = void*;  // a request: write or signal
using nixlMemViewH = void*;     // a memory view: local or remote

enum nixl_status_t {  // the values of NIXL's nixl_types.h that can occur here
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_INVALID_PARAM = -2,
};

struct nixlMemViewElem {
    nixlMemViewH mvh;
    size_t index;   // which entry of the view
    size_t offset;  // bytes from its start
};

struct nixlGpuXferStatusH {
    alignas(16) unsigned char storage[64] = {};
};

namespace nixl_gpu_flags {
constexpr uint64_t defer = 1;  // "may be batched with later ones"; stores need no doorbell, so it changes nothing here
}

namespace ep {
namespace nixl {

// A handle points to a header and `count` regions in this rank's heap, which ep_lib/compat/nixl.py writes.
enum Kind : uint32_t { kWriteRequest = 1, kSignalRequest = 2, kLocalView = 3, kRemoteView = 4 };

constexpr uint32_t kMagic = 0x4c58494e;  // "NIXL": identifies handles, so that most other addresses are refused

struct Region {
    uint64_t address;  // as this rank's kernels reach it
    uint64_t bytes;
    int64_t rank;  // whose memory
};

struct Table {  // a write request has its local side as region 0 and its remote sides from 1 on
    uint32_t magic;
    uint32_t kind;
    uint64_t count;
};

template <nixl_gpu_level_t LEVEL>
EP_DEVICE bool is_leader() {
    if constexpr (LEVEL == nixl_gpu_level_t::THREAD) return true;
    if constexpr (LEVEL == nixl_gpu_level_t::WARP) return lane_id() == 0;
    return thread_in_block() == 0;
}

template <nixl_gpu_level_t LEVEL>
EP_DEVICE void barrier() {
    if constexpr (LEVEL == nixl_gpu_level_t::WARP) __syncwarp();
    if constexpr (LEVEL == nixl_gpu_level_t::BLOCK) __syncthreads();
}

// Entry `index` of a handle of that kind; null (and a fault) if there is none.
EP_DEVICE const Region* find(const void* handle, Kind kind, uint64_t index) {
    const Table* table = static_cast<const Table*>(handle);
    const bool is_handle = table != nullptr && reinterpret_cast<uint64_t>(table) % alignof(Region) == 0 &&
                           table->magic == kMagic && table->kind == kind;
    if (is_handle && index < table->count) return reinterpret_cast<const Region*>(table + 1) + index;
    record_fault(kFaultHandle, {kPhaseWrite, -1, static_cast<int64_t>(index)}, reinterpret_cast<uint64_t>(handle),
                 is_handle ? table->count : 0);
    return nullptr;
}

// True if offset .. offset + size lies inside; a fault otherwise. Cannot overflow, whatever the numbers.
EP_DEVICE bool inside(const Region* region, uint64_t offset, uint64_t size) {
    if (offset <= region->bytes && size <= region->bytes - offset) return true;
    record_fault(kFaultRange, {kPhaseWrite, static_cast<int>(region->rank), static_cast<int64_t>(offset)},
                 offset + size, region->bytes);
    return false;
}

// Copies between two entries. Every thread of the level calls; all take the same branches.
template <nixl_gpu_level_t LEVEL>
EP_DEVICE nixl_status_t write(const Region* from, uint64_t from_offset, const Region* to, uint64_t to_offset,
                              uint64_t size) {
    const bool ok = from != nullptr && to != nullptr && inside(from, from_offset, size) && inside(to, to_offset, size);
    if (ok) {
        void* const dst = reinterpret_cast<void*>(to->address + to_offset);
        const void* const src = reinterpret_cast<const void*>(from->address + from_offset);
        if constexpr (LEVEL == nixl_gpu_level_t::THREAD) copy_bytes<kThreadUnroll>(dst, src, size, 0, 1);
        if constexpr (LEVEL == nixl_gpu_level_t::WARP) copy_bytes<kWarpUnroll>(dst, src, size, lane_id(), kWarpSize);
        if constexpr (LEVEL == nixl_gpu_level_t::BLOCK)
            copy_bytes<kBlockUnroll>(dst, src, size, thread_in_block(), threads_in_block());
    }
    barrier<LEVEL>();
    return ok ? NIXL_IN_PROG : NIXL_ERR_INVALID_PARAM;
}

// Adds to a 64-bit counter. No barrier, see above.
template <nixl_gpu_level_t LEVEL>
EP_DEVICE nixl_status_t add(const Region* counter, uint64_t offset, uint64_t value) {
    if (counter == nullptr || !inside(counter, offset, sizeof(uint64_t))) return NIXL_ERR_INVALID_PARAM;
    if ((counter->address + offset) % sizeof(uint64_t) != 0) {
        record_fault(kFaultRange, {kPhaseWrite, static_cast<int>(counter->rank), static_cast<int64_t>(offset)},
                     offset + sizeof(uint64_t), counter->bytes);
        return NIXL_ERR_INVALID_PARAM;
    }
    if (has_fault()) return NIXL_ERR_INVALID_PARAM;  // the data that this would announce may not have been sent
    if (is_leader<LEVEL>()) red_add_release_sys_u64(reinterpret_cast<uint64_t*>(counter->address + offset), value);
    return NIXL_IN_PROG;
}

}  // namespace nixl
}  // namespace ep

// ---- the guide's names ---------------------------------------------------------------------------------------------

// Writes `size` bytes from the request's local memory to remote side `dst_rkey_idx`. With `wait_completion`, what this
// thread does later by any means is ordered after the write; without, only a signal is. The source may be reused at
// once either way: every byte has been read when the call returns. `flags`: 0.
template <nixl_gpu_level_t LEVEL>
EP_DEVICE void nixlGpuPostSingleWriteXferReq(nixlGpuXferReqH req, uint32_t dst_offset, uint32_t src_offset,
                                             uint32_t dst_rkey_idx, size_t size, uint32_t /*flags*/,
                                             bool wait_completion) {
    const ep::nixl::Region* const from = ep::nixl::find(req, ep::nixl::kWriteRequest, 0);
    const ep::nixl::Region* const to =
        from == nullptr ? nullptr : ep::nixl::find(req, ep::nixl::kWriteRequest, 1ull + dst_rkey_idx);
    ep::nixl::write<LEVEL>(from, src_offset, to, dst_offset, size);
    if (wait_completion) ep::fence_sys();
}

// Adds `value` to the 64-bit signal at `offset` bytes into remote side `dst_rkey_idx`. See above for who calls.
template <nixl_gpu_level_t LEVEL>
EP_DEVICE void nixlGpuPostSignalXferReq(nixlGpuXferReqH req, uint32_t offset, uint64_t value, uint32_t dst_rkey_idx,
                                        uint32_t /*flags*/, bool wait_completion) {
    ep::nixl::add<LEVEL>(ep::nixl::find(req, ep::nixl::kSignalRequest, dst_rkey_idx), offset, value);
    if (wait_completion) ep::fence_sys();
}

// The value of this rank's own signal, read with acquire. At WARP and BLOCK level all threads call and see one value.
template <nixl_gpu_level_t LEVEL>
EP_DEVICE uint64_t nixlGpuReadSignal(const void* signal_ptr) {
    const uint64_t* const signal = static_cast<const uint64_t*>(signal_ptr);
    if constexpr (LEVEL == nixl_gpu_level_t::THREAD) {
        return ep::read_signal(signal);
    } else if constexpr (LEVEL == nixl_gpu_level_t::WARP) {
        const unsigned long long value = ep::lane_id() == 0 ? ep::read_signal(signal) : 0;
        const uint64_t seen = __shfl_sync(ep::kFullWarp, value, 0);
        __syncwarp();  // hands on what lane 0 acquired; the shuffle hands on the number only
        return seen;
    } else {
        __shared__ uint64_t seen;
        if (ep::thread_in_block() == 0) seen = ep::read_signal(signal);
        __syncthreads();
        const uint64_t value = seen;
        __syncthreads();  // `seen` is not overwritten before all have read it
        return value;
    }
}

// ---- NIXL 1.0 and later --------------------------------------------------------------------------------------------

// Puts `size` bytes of a local view's entry into a remote view's. Returns NIXL_IN_PROG (posted; ask for completion with
// nixlGpuGetXferStatus) or NIXL_ERR_INVALID_PARAM (nothing moved). Puts and adds are ordered on all channels alike.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
EP_DEVICE nixl_status_t nixlPut(const nixlMemViewElem& src, const nixlMemViewElem& dst, size_t size,
                                unsigned /*channel_id*/ = 0, uint64_t /*flags*/ = 0,
                                nixlGpuXferStatusH* /*xfer_status*/ = nullptr) {
    return ep::nixl::write<level>(ep::nixl::find(src.mvh, ep::nixl::kLocalView, src.index), src.offset,
                                  ep::nixl::find(dst.mvh, ep::nixl::kRemoteView, dst.index), dst.offset, size);
}

// Adds `value` to the 64-bit counter in a remote view. Returns as nixlPut does.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
EP_DEVICE nixl_status_t nixlAtomicAdd(uint64_t value, const nixlMemViewElem& counter, unsigned /*channel_id*/ = 0,
                                      uint64_t /*flags*/ = 0, nixlGpuXferStatusH* /*xfer_status*/ = nullptr) {
    return ep::nixl::add<level>(ep::nixl::find(counter.mvh, ep::nixl::kRemoteView, counter.index), counter.offset,
                                value);
}

// Completes what the calling threads have posted: NIXL_SUCCESS once it is ordered before all they do next.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
EP_DEVICE nixl_status_t nixlGpuGetXferStatus(nixlGpuXferStatusH& /*xfer_status*/) {
    ep::fence_sys();
    ep::nixl::barrier<level>();
    return NIXL_SUCCESS;
}

// The start of a remote view's entry as this GPU can address it directly: here always; null for a bad handle.
EP_DEVICE void* nixlGetPtr(nixlMemViewH mvh, size_t index) {
    const ep::nixl::Region* const region = ep::nixl::find(mvh, ep::nixl::kRemoteView, index);
    return region == nullptr ? nullptr : reinterpret_cast<void*>(region->address);
}
