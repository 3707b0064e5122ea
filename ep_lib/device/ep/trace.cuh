// Values that a kernel reports about itself, for figures of a simulated run.
//
//     ep::trace_value("slots in use", slots);
//
// ep_lib.simulate() collects them: Timeline.samples, counters in its Chrome trace. Anywhere else, and on GPUs, a call
// does nothing and costs nothing. `name` must be a string literal, or live as long as the run.
#pragma once
#include <ep/platform.cuh>

namespace ep {

// One thread reports a value; it is recorded at the thread's virtual time.
EP_DEVICE void trace_value(const char* name, double value) { detail::trace_value(name, value); }

}  // namespace ep
