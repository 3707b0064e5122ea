// Virtual time as Python sees it (ep_lib/emulator/library.py mirrors these), and what kernels say about themselves.
#include "machine.hpp"
#include "pct.hpp"
#include "virtual_time.hpp"

using namespace epemu;

extern "C" {

// Virtual time is on from here; call it before anything is launched.
void epemu_time_begin(Machine* m, const HardwareModel* hardware) {
    m->time = std::make_shared<VirtualTime>(*m, *hardware);
    m->pct.reset();  // what is earliest runs, whatever the seed
}

const SpanRecord* epemu_time_spans(Machine* m, uint64_t* count) {
    *count = m->time->spans.size();
    return m->time->spans.data();
}
const MessageRecord* epemu_time_messages(Machine* m, uint64_t* count) {
    *count = m->time->messages.size();
    return m->time->messages.data();
}
const SampleRecord* epemu_time_samples(Machine* m, uint64_t* count) {
    *count = m->time->samples.size();
    return m->time->samples.data();
}
// Names of kernels, waits and samples by number; null behind the last.
const char* epemu_time_name(Machine* m, int number) {
    const auto& names = m->time->names;
    return number < static_cast<int>(names.size()) ? names[number].c_str() : nullptr;
}
const char* epemu_image_path(Machine* m, int number) {
    return number < static_cast<int>(m->images.size()) ? m->images[number]->path.c_str() : nullptr;
}
// A rank's host has waited for a ticket; rank -1: all hosts have met.
void epemu_time_host(Machine* m, int rank, int64_t ticket) {
    if (rank < 0) {
        m->time->hosts_met();
    } else {
        m->time->host_waited(rank, ticket);
    }
}

void epemu_trace_value(const char* name, double value) {
    if (timed) timed->sample(name, value);
}

}  // extern "C"
