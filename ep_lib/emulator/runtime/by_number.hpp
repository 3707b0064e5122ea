// Values that are found by their numbers: a vector of the values in order of arrival, and a hash table of their places
// in the vector. A value has no allocation of its own, and a repeated look-up skips the table.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <vector>

namespace epemu {

template <class Value>  // has a member `number`; the other members of a new value are 0
class ByNumber {
  public:
    Value* find(uint32_t number) {
        if (last_ < all.size() && all[last_].number == number) return &all[last_];
        if (places_.empty()) {
            for (last_ = 0; last_ < all.size(); last_++)
                if (all[last_].number == number) return &all[last_];
            return nullptr;
        }
        for (size_t i = first(number); places_[i]; i = (i + 1) & (places_.size() - 1))
            if (all[places_[i] - 1].number == number) return &all[last_ = places_[i] - 1];
        return nullptr;
    }
    Value& operator[](uint32_t number) {
        if (Value* known = find(number)) return *known;
        last_ = all.size();
        all.emplace_back();
        all.back().number = number;
        if (all.size() > kFew && 2 * all.size() > places_.size()) {
            places_.assign(std::max(kLeast, 2 * places_.size()), 0);
            for (size_t place = 0; place < all.size(); place++) enter(place);
        } else if (!places_.empty()) {
            enter(last_);
        }
        return all.back();
    }
    void clear() {
        all.clear();
        places_.clear();
    }

    std::vector<Value> all;

  private:
    static constexpr size_t kFew = 4, kLeast = 32;  // values that need no table; entries of the smallest table
    size_t first(uint32_t number) const { return (number * 0x9e3779b1u >> 7) & (places_.size() - 1); }
    void enter(size_t place) {
        size_t i = first(all[place].number);
        while (places_[i]) i = (i + 1) & (places_.size() - 1);
        places_[i] = static_cast<uint32_t>(place + 1);
    }

    std::vector<uint32_t> places_;  // place + 1, or 0; the table's length is a power of two
    size_t last_ = 0;               // the place that was found last
};

}  // namespace epemu
