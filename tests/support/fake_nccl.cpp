// What ep_lib.transports.nccl.library calls of libnccl, without a GPU. FAKE_NCCL names what is different: a call that
// fails, or "old", "no symmetric memory", "a network to rank 1". Memory of peers lies 1 << 40 apart.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {
struct Id {
    char internal[128];
};
bool differs(const char* what) {
    const char* name = getenv("FAKE_NCCL");
    return name && !strcmp(name, what);
}
int status(const char* call) { return differs(call) ? 3 : 0; }
int own_rank, abandoned;
}  // namespace

extern "C" {
int ncclGetVersion(int* version) { return *version = differs("old") ? 22809 : 23007, 0; }
const char* ncclGetErrorString(int) { return "internal error"; }
const char* ncclGetLastError(void*) { return "the fake was told to fail"; }
int ncclGetUniqueId(Id* id) { return memset(id, 42, sizeof *id), status("ncclGetUniqueId"); }
int ncclCommInitRank(void** comm, int, Id id, int rank) {
    own_rank = rank;
    *comm = &own_rank;
    return id.internal[127] == 42 ? status("ncclCommInitRank") : 4;
}
int ncclMemAlloc(void** address, size_t bytes) { return *address = malloc(bytes), status("ncclMemAlloc"); }
int ncclMemFree(void* address) { return free(address), status("ncclMemFree"); }
int ncclCommWindowRegister(void* comm, void* address, size_t, void** window, int flags) {
    if (comm != &own_rank || flags != 1) return 4;
    *window = differs("no symmetric memory") ? nullptr : address;
    return status("ncclCommWindowRegister");
}
int ncclGetPeerDevicePointer(void* window, size_t offset, int peer, void** address) {
    const bool apart = peer != own_rank;
    *address = static_cast<char*>(window) + offset + (apart ? static_cast<size_t>(peer + 1) << 40 : 0);
    if (apart && peer == 1 && differs("a network to rank 1")) *address = nullptr;
    return status("ncclGetPeerDevicePointer");
}
int ncclCommWindowDeregister(void*, void*) { return status("ncclCommWindowDeregister"); }
int ncclCommDestroy(void*) { return status("ncclCommDestroy"); }
int ncclCommAbort(void*) { return abandoned++, 0; }
int fake_nccl_abandoned() { return abandoned; }
}
