// In a kernel that contains a learner's piece.
#pragma once

namespace ep::detail {
constexpr bool kCountsPieces = true;
}  // namespace ep::detail
