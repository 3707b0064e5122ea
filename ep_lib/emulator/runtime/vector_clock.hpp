// Vector clocks: the knowledge of each simulated thread about all others' pasts (Lamport 1978; Mattern 1989).
//
// A clock is a tree of three levels with 64 entries a node, copied on write: after a barrier all threads of a block
// share one, and a copy costs a counter. Entries that were never raised take no memory.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>

namespace epemu {

class __attribute__((visibility("hidden"))) VectorClock {
  public:
    VectorClock() = default;
    VectorClock(const VectorClock& other) : top_(other.top_) { retain(top_); }
    VectorClock(VectorClock&& other) noexcept : top_(std::exchange(other.top_, nullptr)) {}
    VectorClock& operator=(VectorClock other) noexcept {
        std::swap(top_, other.top_);
        return *this;
    }
    ~VectorClock() { release(top_); }

    // The part of a thread's past in this clock: everything up to this time of its own.
    uint32_t get(uint32_t thread) const {
        const uint32_t m = thread / kPerMiddle;
        if (!top_ || m >= top_->size || !top_->middle[m]) return 0;
        const Leaf* leaf = top_->middle[m]->leaf[thread / kFanOut % kFanOut];
        return leaf ? leaf->time[thread % kFanOut] : 0;
    }
    // Whether the clock has a warp's lanes up to these times. `first`: the thread of lane 0.
    bool has_all(uint32_t first, uint32_t lanes, const uint32_t* times) const;
    void raise(uint32_t thread, uint32_t time);
    void join(const VectorClock& other);
    bool same(const VectorClock& other) const { return top_ == other.top_; }
    bool empty() const { return !top_; }
    // Clocks with equal stamps are equal: the stamp changes with every change of a clock.
    uint32_t stamp() const { return top_ ? top_->stamp : 0; }

    static size_t bytes_in_use();

  private:
    static constexpr uint32_t kFanOut = 64, kPerMiddle = kFanOut * kFanOut;
    struct Leaf {
        uint32_t references;
        uint32_t time[kFanOut];
    };
    struct Middle {
        uint32_t references;
        Leaf* leaf[kFanOut];
    };
    struct Top {
        uint32_t references, size, stamp;
        Middle* middle[1];  // `size` of them
    };

    static Leaf* new_leaf(const Leaf* like);
    static Middle* new_middle(const Middle* like);
    static Top* new_top(const Top* like, uint32_t size);
    static void retain(Top* top) {
        if (top) top->references++;
    }
    static void release(Top* top) {
        if (top && --top->references == 0) free_top(top);
    }
    static void free_top(Top* top);
    static void release(Middle* middle);
    static void release(Leaf* leaf);
    void own_top(uint32_t size);
    Middle* own_middle(uint32_t m);
    Leaf* own_leaf(uint32_t m, uint32_t l);
    void join_middle(uint32_t m, const Middle* from);

    Top* top_ = nullptr;
};

// Knowledge that reaches a thread through a release and an acquire.
struct Known {
    VectorClock clock;
    VectorClock proxied;  // the part of it that came through a proxy fence: bulk copies see no other stores
    void join(const Known& other) {
        clock.join(other.clock);
        proxied.join(other.proxied);
    }
    bool same(const Known& other) const { return clock.same(other.clock) && proxied.same(other.proxied); }
    bool empty() const { return clock.empty(); }
};

}  // namespace epemu
