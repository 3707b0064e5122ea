// The target may begin anywhere.
// EXERCISE-BEGIN 5b
const uint64_t slot = round % pipe.num_slots;
if (!wait_until_ge_warp(pipe.arrived, round + 1, {kPhaseSignal, peer, int64_t(slot)})) return false;
const char* const from = pipe.slots + slot * pipe.slot_bytes;
if (pipe.slot_bytes % 16 == 0) {
    for (size_t i = lane_id(); i < pipe.slot_bytes / 16; i += kWarpSize)
        static_cast<int4*>(target)[i] = ld_na_v4(reinterpret_cast<const int4*>(from) + i);
} else {
    for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) static_cast<char*>(target)[i] = from[i];
}
__syncwarp();
if (lane_id() == 0) signal_add(pipe.credits, 1, peer);
return true;
// EXERCISE-END 5b
