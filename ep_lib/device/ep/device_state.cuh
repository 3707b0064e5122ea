// A kernel's knowledge about the world, and the record that it leaves behind when a wait fails.
//
// Host and device share these structs: ep_lib/jit/device_state.py reads their layout from this file.
// <ep/platform.cuh> includes it, not the other way round.
#pragma once
#include <stdint.h>

namespace ep {

constexpr int kMaxRanks = 64;        // room in DeviceState
constexpr int kMaxPieceCounts = 16;  // room in HeapHeader

// A kernel's activity when it gave up: the `phase` of a FaultRecord.
enum Phase : int32_t {
    kPhaseNone = 0,
    kPhaseSignal,    // waiting for data to be signalled
    kPhaseCredit,    // waiting for room in the peer's buffer
    kPhaseBarrier,   // waiting for the other ranks
    kPhaseLayout,    // waiting for the peers' token counts
    kPhaseDispatch,  // waiting for dispatched tokens
    kPhaseCombine,   // waiting for tokens to come back
    kPhaseWrite,     // posting a write or a signal to a peer
    kPhaseProxy,     // waiting for the host's proxy: for a slot of its ring, or until a command is done
    kPhaseUser,      // for a learner's own kernels
    kNumPhases
};

enum FaultCode : int32_t {
    kFaultNone = 0,
    kFaultTimeout,  // a wait ran into its limit; `seen` and `expected` are the flag's values
    kFaultRange,  // a transfer outside the registered memory: slot = offset, seen = its end, expected = size registered
    kFaultHandle,  // not a handle, or one of the wrong kind: slot = index asked for, seen = address, expected = entries
    kFaultIbgdaState,  // <ep/ibgda_shim.cuh> was used before ep_lib.ibgda.init_efa_device_state
    kFaultTransport,   // loads and stores do not reach `peer`, and there is no network transport
    kFaultInput,  // bad input of a Buffer's call: slot = element, expected = an InputFault, seen = id or weight's bits
    kFaultOptions,  // peer passed other options than this rank: seen and expected
    kFaultRoom,     // a dispatch brought `seen` rows, and the caller's arrays have `expected`
    kFaultProxy,    // the proxy has given up, and says why to the host
    kNumFaultCodes
};

// The problem with an element of topk_idx or topk_weights.
enum InputFault : uint64_t {
    kNoExpert,       // no expert has this id
    kNotFinite,      // the weight is infinite or NaN
    kNotDispatched,  // the token did not go to that expert in the dispatch that is being combined
};

// The first fault of a rank since the host last looked; code is kFaultNone if there is none. 48 bytes.
struct FaultRecord {
    int32_t code;
    int32_t rank;
    int32_t peer;  // the rank that the wait or transfer was about; -1: no particular one
    int32_t phase;
    int64_t slot;
    uint64_t seen;
    uint64_t expected;
    uint64_t reserved;
};

// Written by ep_lib.ibgda.init_efa_device_state, read by <ep/ibgda_shim.cuh>; all zero before. 8 bytes.
struct IbgdaState {
    int32_t num_rc_per_pe;            // channels: queue pairs to each peer, on each device
    int32_t num_devices_initialized;  // NICs in use
};

// The first 256 bytes of every rank's symmetric heap.
struct HeapHeader {
    FaultRecord fault;
    uint64_t timeout_ns;  // emulator: limit of a wait; 0: kDefaultTimeoutNs (GPUs read DeviceState instead)
    IbgdaState ibgda;
    uint64_t proxy;  // transport="proxy": address of the rank's ProxyRings (<ep/proxy_command.cuh>)
    // Of ranks that are processes on the emulator; their hosts write it while kernels run.
    uint64_t gone;                           // bit r: rank r's process has ended, so no wait for it can succeed
    uint64_t give_up;                        // 1: nor can any other wait, since the other ranks wait for a gone one
    uint64_t piece_counts[kMaxPieceCounts];  // <ep/pieces.cuh>
    uint64_t reserved[5];
};

// Filled by the cuda backend into the constant `ep_device_state` before a module's first launch. 552 bytes.
struct DeviceState {
    int32_t rank;
    int32_t num_ranks;
    uint64_t heap_bytes;
    uint64_t fault_record;          // address of this rank's FaultRecord
    uint64_t shown_fault;           // address of the FaultRecord's copy in host memory, for the host while kernels run
    uint64_t timeout_ns;            // limit of a wait; 0: kDefaultTimeoutNs
    uint64_t heap_base[kMaxRanks];  // start of each rank's symmetric heap, as this rank addresses it
};

// Long enough for a peer that is still compiling or loading data, short enough for a person to wait for.
constexpr uint64_t kDefaultTimeoutNs = 30ull * 1000 * 1000 * 1000;

static_assert(sizeof(HeapHeader) == 256, "the reserved head of every symmetric heap");

}  // namespace ep
