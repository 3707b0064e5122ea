// malloc and free in kernels. Each rank has CUDA's default of 8 MB; beyond that malloc returns null, as on a GPU.
//
// Addresses are not reused within a run, so that an access after free is found; freed memory returns its pages.
#include <stdint.h>
#include <sys/mman.h>

#include <algorithm>

#include "machine.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr size_t kLimit = 8 << 20, kAlign = 16, kPage = 4096;
constexpr size_t kReserved = size_t{1} << 30;  // of address space: allocations of one run, freed ones included

}  // namespace

DeviceHeap::~DeviceHeap() {
    if (memory) munmap(memory, kReserved);
}

void* DeviceHeap::allocate(size_t bytes, std::vector<Range>& ranges) {
    const size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign + kAlign;  // with a gap behind it
    if (bytes > kLimit || in_use + size > kLimit || used + size > kReserved) return nullptr;
    if (!memory) {
        void* m = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED) return nullptr;
        memory = static_cast<char*>(m);
    }
    char* result = memory + used;
    used += size;
    in_use += size;
    const Range range = {reinterpret_cast<uintptr_t>(result), reinterpret_cast<uintptr_t>(result) + bytes, true};
    ranges.insert(std::upper_bound(ranges.begin(), ranges.end(), range,
                                   [](const Range& a, const Range& b) { return a.begin < b.begin; }),
                  range);
    return result;
}

bool DeviceHeap::release(uintptr_t address, std::vector<Range>& ranges) {
    const auto at = std::find_if(ranges.begin(), ranges.end(), [&](const Range& r) { return r.begin == address; });
    if (address - reinterpret_cast<uintptr_t>(memory) >= used || at == ranges.end()) return false;
    const uintptr_t first = (at->begin + kPage - 1) / kPage * kPage, last = at->end / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    in_use -= (std::max<size_t>(at->end - at->begin, 1) + kAlign - 1) / kAlign * kAlign + kAlign;
    ranges.erase(at);
    return true;
}

}  // namespace epemu

using namespace epemu;

extern "C" {

void* epemu_malloc(size_t bytes) {
    if (!current) return nullptr;
    Rank& rank = machine->ranks[current->block->launch->rank];
    return rank.heap.allocate(bytes, rank.ranges);
}

void epemu_free(void* pointer) {
    if (!pointer || !current) return;
    Launch* launch = current->block->launch;
    Rank& rank = machine->ranks[launch->rank];
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (!rank.heap.release(address, rank.ranges))
        raise_fault(Fault::kBadAddress, EPEMU_PC, address,
                    "frees memory that no malloc of a kernel of this rank gave, or that is free already: " +
                        describe_address(*machine, address));
    for (auto& other : rank.queue) other->recent[0] = other->recent[1] = {};
}

}  // extern "C"
