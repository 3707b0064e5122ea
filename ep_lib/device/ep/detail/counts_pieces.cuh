// Whether <ep/pieces.cuh> counts. Kernels that contain a learner's piece find ep_lib/device/counting/ before this file.
#pragma once

namespace ep::detail {
constexpr bool kCountsPieces = false;
}  // namespace ep::detail
