#include "vector_clock.hpp"

#include "machine.hpp"

#include <stdlib.h>
#include <string.h>

#include <vector>

namespace epemu {
namespace {

size_t in_use;

void* had(void* memory) {
    if (!memory) no_memory();
    return memory;
}

// Nodes of one type are allocated and freed all the time: keep free ones.
template <class Node>
struct Pool {
    static constexpr size_t kKeep = 4096;
    std::vector<Node*> free;
    Pool() { free.reserve(kKeep); }  // returning one needs no memory
    Node* take() {
        in_use += sizeof(Node);
        if (free.empty()) return static_cast<Node*>(had(malloc(sizeof(Node))));
        Node* node = free.back();
        free.pop_back();
        return node;
    }
    void give_back(Node* node) {
        in_use -= sizeof(Node);
        if (free.size() < kKeep) {
            free.push_back(node);
        } else {
            ::free(node);
        }
    }
};
template <class Node>
Pool<Node>& pool() {
    static auto* const p = new Pool<Node>;  // never destroyed: clocks may outlive static objects
    return *p;
}

}  // namespace

size_t VectorClock::bytes_in_use() { return in_use; }

VectorClock::Leaf* VectorClock::new_leaf(const Leaf* like) {
    Leaf* leaf = pool<Leaf>().take();
    if (like) {
        memcpy(leaf, like, sizeof *leaf);
    } else {
        memset(leaf, 0, sizeof *leaf);
    }
    leaf->references = 1;
    return leaf;
}

VectorClock::Middle* VectorClock::new_middle(const Middle* like) {
    Middle* middle = pool<Middle>().take();
    if (like) {
        memcpy(middle, like, sizeof *middle);
        for (Leaf* leaf : middle->leaf)
            if (leaf) leaf->references++;
    } else {
        memset(middle, 0, sizeof *middle);
    }
    middle->references = 1;
    return middle;
}

VectorClock::Top* VectorClock::new_top(const Top* like, uint32_t size) {
    const size_t bytes = sizeof(Top) + size * sizeof(Middle*);
    auto* top = static_cast<Top*>(had(calloc(1, bytes)));
    in_use += bytes;
    top->references = 1;
    top->size = size;
    for (uint32_t m = 0; like && m < like->size; m++)
        if ((top->middle[m] = like->middle[m])) top->middle[m]->references++;
    return top;
}

void VectorClock::release(Leaf* leaf) {
    if (leaf && --leaf->references == 0) pool<Leaf>().give_back(leaf);
}

void VectorClock::release(Middle* middle) {
    if (!middle || --middle->references) return;
    for (Leaf* leaf : middle->leaf) release(leaf);
    pool<Middle>().give_back(middle);
}

void VectorClock::free_top(Top* top) {
    for (uint32_t m = 0; m < top->size; m++) release(top->middle[m]);
    in_use -= sizeof(Top) + top->size * sizeof(Middle*);
    free(top);
}

// Every change of a clock begins here.
void VectorClock::own_top(uint32_t size) {
    static uint32_t stamps;
    if (!top_ || top_->references > 1 || top_->size < size) {
        Top* mine = new_top(top_, top_ && top_->size > size ? top_->size : size);
        release(top_);
        top_ = mine;
    }
    top_->stamp = ++stamps;
}

// After own_top.
VectorClock::Middle* VectorClock::own_middle(uint32_t m) {
    Middle*& middle = top_->middle[m];
    if (!middle || middle->references > 1) {
        Middle* mine = new_middle(middle);
        release(middle);
        middle = mine;
    }
    return middle;
}

VectorClock::Leaf* VectorClock::own_leaf(uint32_t m, uint32_t l) {
    Leaf*& leaf = own_middle(m)->leaf[l];
    if (!leaf || leaf->references > 1) {
        Leaf* mine = new_leaf(leaf);
        release(leaf);
        leaf = mine;
    }
    return leaf;
}

bool VectorClock::has_all(uint32_t first, uint32_t lanes, const uint32_t* times) const {
    const uint32_t m = first / kPerMiddle;
    const Middle* middle = top_ && m < top_->size ? top_->middle[m] : nullptr;
    const Leaf* leaf = middle ? middle->leaf[first / kFanOut % kFanOut] : nullptr;
    if (!leaf) return !lanes;
    const uint32_t* mine = leaf->time + first % kFanOut;
    uint32_t lacks = 0;  // a loop that compilers vectorise
    for (uint32_t lane = 0; lane < kWarpSize; lane++) lacks |= (lanes >> lane & 1) & (mine[lane] < times[lane]);
    return !lacks;
}

void VectorClock::raise(uint32_t thread, uint32_t time) {
    const uint32_t m = thread / kPerMiddle;
    own_top(m + 1);
    uint32_t& mine = own_leaf(m, thread / kFanOut % kFanOut)->time[thread % kFanOut];
    if (mine < time) mine = time;
}

void VectorClock::join(const VectorClock& other) {
    if (!other.top_ || other.top_ == top_) return;
    if (!top_) {
        *this = other;
        return;
    }
    for (uint32_t m = 0; m < other.top_->size; m++) {
        Middle* from = other.top_->middle[m];
        if (!from || (m < top_->size && top_->middle[m] == from)) continue;
        if (m < top_->size && top_->middle[m]) {
            join_middle(m, from);
        } else {
            own_top(other.top_->size);
            from->references++;
            top_->middle[m] = from;
        }
    }
}

void VectorClock::join_middle(uint32_t m, const Middle* from) {
    for (uint32_t l = 0; l < kFanOut; l++) {
        Leaf* const theirs = from->leaf[l];
        Leaf* const mine = top_->middle[m]->leaf[l];
        if (!theirs || theirs == mine) continue;
        bool mine_has_all = false, theirs_has_all = true;
        if (mine) {
            uint32_t mine_lacks = 0, theirs_lacks = 0;  // a loop that compilers vectorise
            for (uint32_t i = 0; i < kFanOut; i++) {
                mine_lacks |= mine->time[i] < theirs->time[i];
                theirs_lacks |= mine->time[i] > theirs->time[i];
            }
            mine_has_all = !mine_lacks;
            theirs_has_all = !theirs_lacks;
        }
        if (mine_has_all) continue;
        own_top(top_->size);
        if (theirs_has_all) {
            Leaf*& slot = own_middle(m)->leaf[l];
            theirs->references++;
            release(slot);
            slot = theirs;
        } else {
            Leaf* leaf = own_leaf(m, l);
            for (uint32_t i = 0; i < kFanOut; i++)
                if (leaf->time[i] < theirs->time[i]) leaf->time[i] = theirs->time[i];
        }
    }
}

}  // namespace epemu
