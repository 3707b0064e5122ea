#include <moe/low_latency/common.cuh>

extern "C" __global__ void ep_low_latency_finish(ep::LowLatencyArgs args) { ep::low_latency_finish(args); }
