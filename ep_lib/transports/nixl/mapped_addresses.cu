// The addresses at which UCX has mapped each entry of a memory view of other ranks' memory for this GPU's loads and
// stores; 0 if it has not. One thread, called by host code only: ep_lib's kernels then use ep::peer_ptr.
#include <cassert>

#include <ucp/api/device/ucp_device_impl.h>

extern "C" __global__ void mapped_addresses(ucp_device_remote_mem_list_h view, uint64_t* addresses, int entries) {
    for (int i = 0; i < entries; ++i) {
        void* address = nullptr;
        if (ucp_device_get_ptr(view, i, &address) != UCS_OK) address = nullptr;
        addresses[i] = reinterpret_cast<uint64_t>(address);
    }
}
