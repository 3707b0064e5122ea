// The functions that Python calls through ctypes (ep_lib/emulator/library.py mirrors these declarations).
#include <algorithm>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checker.hpp"
#include "fault_injection.hpp"
#include "forwarder.hpp"
#include "machine.hpp"
#include "recorder.hpp"
#include "virtual_time.hpp"

namespace epemu {
namespace {

void* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

void sort_ranges(std::vector<Range>& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

// What the machine's checker tells, as JSON; an empty list without one.
const char* told(Machine* m, std::string (Checker::*what)() const) {
    return with_memory([&]() -> const char* {
        m->findings = m->checker ? (m->checker.get()->*what)() : "[]";
        return m->findings.c_str();
    });
}

}  // namespace

Machine::Machine(int ranks_, const Settings& settings_)
    : settings(settings_), random(settings_.seed), num_ranks(ranks_), ranks(ranks_) {
    network = std::make_unique<Network>(settings.fabric);
    network->links.resize(num_ranks * num_ranks);
    network->posted.resize(num_ranks);
    network->staging.resize(num_ranks);
    schedule = make_schedule(*this);
    heap_shift = 16;
    while ((size_t{1} << heap_shift) < settings.heap_span) heap_shift++;
    heap_stride = size_t{1} << heap_shift;
    heaps_bytes = heap_stride * num_ranks;
    for (size_t i = kSharedSlots; i-- > 0;) free_slots.push_back(static_cast<uint32_t>(i));
    heaps = static_cast<char*>(reserve(heaps_bytes));  // last: nothing is thrown after it
    shared_area = static_cast<char*>(reserve(kSharedSlots * kSharedSlotBytes));
}

Machine::~Machine() {
    forwarder.reset();  // its threads write to the heaps
    for (auto& block : resident)
        for (Fiber& fiber : block->fibers) release_stack(&fiber, settings.stack_bytes);
    if (heaps) munmap(heaps, heaps_bytes);
    if (shared_area) munmap(shared_area, kSharedSlots * kSharedSlotBytes);
    for (auto& image : images) dlclose(image->handle);
    release_stack_memory();
}

}  // namespace epemu

using namespace epemu;

extern "C" {

// Null if there is no address space for the heaps.
Machine* epemu_create(int ranks, const Settings* settings) {
    return with_memory([&]() -> Machine* {
        auto* m = new Machine(ranks, *settings);
        if (m->heaps && m->shared_area) return m;
        delete m;
        return nullptr;
    });
}
void epemu_destroy(Machine* m) { delete m; }
void epemu_keep_stacks(int more) {
    stack_keepers += more;
    release_stack_memory();
}

char* epemu_machine_heap(Machine* m, int rank) { return m->heaps + rank * m->heap_stride; }
// Maps a file, which the rank's process maps too, as the rank's heap. 0, or an errno.
int epemu_map_heap(Machine* m, int rank, int file) {
    void* where = m->heaps + rank * m->heap_stride;
    void* got = mmap(where, m->settings.heap_span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return got == MAP_FAILED ? errno : 0;
}
// Sockets to a rank of another host, for our operations there and for its operations here. The machine closes them.
void epemu_forward(Machine* m, int rank, int ours, int theirs) {
    with_memory([&] {
        if (!m->forwarder) m->forwarder = std::make_unique<Forwarder>(*m);
        m->forwarder->add(rank, ours, theirs);
    });
}
void epemu_forwarded_bytes(Machine* m, uint64_t* sent, uint64_t* received) {
    *sent = m->forwarder ? m->forwarder->sent_bytes.load() : 0;
    *received = m->forwarder ? m->forwarder->received_bytes.load() : 0;
}
// Closes the connections; call this when no kernel runs any more.
void epemu_end_forwarding(Machine* m) { m->forwarder.reset(); }
int epemu_link_ended(Machine* m, int rank) { return m->forwarder && m->forwarder->has_ended(rank); }
// The current symmetric arrays of a rank: begins and ends, sorted. Its later launches may touch them.
void epemu_set_arrays(Machine* m, int rank, const uint64_t* offsets, uint64_t count) {
    with_memory([&] {
        auto now = std::make_shared<std::vector<Range>>();
        for (uint64_t i = 0; i < count; i++) now->push_back({offsets[2 * i], offsets[2 * i + 1], true});
        const auto overlaps = [&](const Range& old) {
            auto it = std::lower_bound(now->begin(), now->end(), old.begin,
                                       [](const Range& r, uintptr_t begin) { return r.end <= begin; });
            return it != now->end() && it->begin < old.end;
        };
        HostTurn turn(*m);
        Rank& owner = m->ranks[rank];
        if (owner.arrays) owner.freed.insert(owner.freed.end(), owner.arrays->begin(), owner.arrays->end());
        owner.freed.erase(std::remove_if(owner.freed.begin(), owner.freed.end(), overlaps), owner.freed.end());
        owner.arrays = std::move(now);
        if (m->checker) m->checker->has_arrays(rank, *owner.arrays);
        for (auto& service : owner.services) {
            service->arrays = owner.arrays;
            service->recent_symmetric[0] = service->recent_symmetric[1] = {};
        }
    });
}

// Loads a compiled kernel; `name` is its name in reports. A second copy, with its own globals, needs a new path. Null:
// see epemu_error.
Image* epemu_load_image(Machine* m, const char* path, const char* name) {
    return with_memory([&]() -> Image* {
        void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle) return nullptr;
        auto image = std::make_unique<Image>();
        image->path = name;
        image->handle = handle;
        struct link_map* map = nullptr;
        dlinfo(handle, RTLD_DI_LINKMAP, &map);
        image->base = map->l_addr;
        dl_iterate_phdr(
            [](dl_phdr_info* info, size_t, void* data) {
                auto* image = static_cast<Image*>(data);
                if (info->dlpi_addr != image->base) return 0;
                for (int i = 0; i < info->dlpi_phnum; i++) {
                    const auto& p = info->dlpi_phdr[i];
                    const uintptr_t begin = info->dlpi_addr + p.p_vaddr, end = begin + p.p_memsz;
                    if (p.p_type == PT_LOAD) image->segments.push_back({begin, end, (p.p_flags & PF_X) != 0});
                    if (p.p_type == PT_GNU_RELRO) image->relocated = {begin, end, false};
                }
                return 1;
            },
            image.get());
        image->memory = memory_of_kernel(path, image->base, image->relocated);
        HostTurn turn(*m);
        m->images.push_back(std::move(image));
        return m->images.back().get();
    });
}
const char* epemu_error() { return dlerror(); }
void* epemu_symbol(Image* image, const char* name) { return dlsym(image->handle, name); }

struct LaunchRequest {
    int32_t rank;
    uint32_t grid[3], block[3];
    uint64_t static_shared, dynamic_shared;
    const char* kernel;
    const void* arg_bytes;        // the arguments' values, one after another
    const uint64_t* arg_offsets;  // where each begins
    uint64_t num_args, num_arg_bytes;
    const char* parameters;  // as in Launch
    const Range* ranges;
    uint64_t num_ranges;
    const Range* read_only;
    uint64_t num_read_only;
};

static std::unique_ptr<Launch> make_launch(const Rank& rank, Image* image, void* entry, const LaunchRequest* r) {
    auto launch = std::make_unique<Launch>();
    launch->ticket = rank.last_ticket + 1;
    launch->rank = r->rank;
    launch->kernel = r->kernel;
    launch->image = image;
    launch->entry = reinterpret_cast<Entry>(entry);
    launch->grid = {r->grid[0], r->grid[1], r->grid[2]};
    launch->block = {r->block[0], r->block[1], r->block[2]};
    launch->num_blocks = uint64_t{r->grid[0]} * r->grid[1] * r->grid[2];
    launch->static_shared = r->static_shared;
    launch->dynamic_shared = r->dynamic_shared;
    launch->arg_bytes.resize(r->num_arg_bytes + 16);
    char* aligned = launch->arg_bytes.data() + (16 - reinterpret_cast<uintptr_t>(launch->arg_bytes.data()) % 16) % 16;
    if (r->num_arg_bytes) memcpy(aligned, r->arg_bytes, r->num_arg_bytes);
    for (uint64_t i = 0; i < r->num_args; i++) launch->args.push_back(aligned + r->arg_offsets[i]);
    launch->parameters = r->parameters;
    launch->ranges.assign(r->ranges, r->ranges + r->num_ranges);
    sort_ranges(launch->ranges);
    launch->read_only.assign(r->read_only, r->read_only + r->num_read_only);
    launch->arrays = rank.arrays;
    return launch;
}

// Queues a launch; returns its ticket, which the rank's launches finish in order.
int64_t epemu_launch(Machine* m, Image* image, void* entry, const LaunchRequest* r) {
    return with_memory([&]() -> int64_t {
        HostTurn turn(*m);
        Rank& rank = m->ranks[r->rank];
        auto launch = make_launch(rank, image, entry, r);
        if (m->checker) m->checker->launched(launch.get());
        if (m->time) m->time->launched(launch.get());
        rank.queue.push_back(std::move(launch));
        return ++rank.last_ticket;
    });
}
// Starts a kernel that runs beside the rank's stream and never ends. It may touch every symmetric array.
int64_t epemu_launch_service(Machine* m, Image* image, void* entry, const LaunchRequest* r) {
    return with_memory([&]() -> int64_t {
        HostTurn turn(*m);
        Rank& rank = m->ranks[r->rank];
        auto launch = make_launch(rank, image, entry, r);
        launch->is_service = true;
        if (!launch->arrays) launch->arrays = std::make_shared<std::vector<Range>>();
        if (m->checker) m->checker->launched(launch.get());
        rank.services.push_back(std::move(launch));
        return 1;
    });
}
int64_t epemu_done_ticket(Machine* m, int rank) {
    HostTurn turn(*m);
    return m->ranks[rank].done_ticket;
}

// Arrays that kernels of a rank may reach by addresses inside structs, while they are registered.
void epemu_register(Machine* m, int rank, uint64_t begin, uint64_t end, int writable) {
    with_memory([&] {
        HostTurn turn(*m);
        m->ranks[rank].ranges.push_back({begin, end, writable != 0});
        sort_ranges(m->ranks[rank].ranges);
    });
}
void epemu_unregister(Machine* m, int rank, uint64_t begin, uint64_t end) {
    HostTurn turn(*m);
    auto& ranges = m->ranks[rank].ranges;
    auto it =
        std::find_if(ranges.begin(), ranges.end(), [&](const Range& r) { return r.begin == begin && r.end == end; });
    if (it != ranges.end()) ranges.erase(it);
    for (auto& launch : m->ranks[rank].queue) launch->recent[0] = launch->recent[1] = {};
}

// Runs kernels until one of the awaited tickets (by rank; 0: none) is done; null: until all services wait. Returns an
// Outcome; epemu_report says more.
int epemu_run(Machine* m, const int64_t* awaited) {
    install_signal_handlers();
    m->most_waiting = 0;  // of this run
    const Outcome outcome = with_memory([&] { return run(*m, awaited); });
    if (recorder) recorder->read_latest();
    recorder = nullptr;
    machine = nullptr;
    checker = nullptr;
    timed = nullptr;
    restore_signal_handlers();
    return static_cast<int>(m->fault == Fault::kHang ? Outcome::kStopped : outcome);
}
// Delivers all operations in flight, as far as possible.
void epemu_drain_network(Machine* m) {
    with_memory([&] {
        machine = m;
        checker = m->checker.get();
        recorder = m->recorder.get();
        timed = m->time;
        m->schedule->drain();
        if (recorder) recorder->read_latest();
    });
    recorder = nullptr;
    machine = nullptr;
    checker = nullptr;
    timed = nullptr;
}
// Breaks the link from one rank to another, to test a learner's kernel.
void epemu_break_link(Machine* m, int from, int to) { m->network->links[from * m->num_ranks + to].broken = true; }
// The most blocks that were resident at one time, over all ranks.
uint64_t epemu_most_resident_blocks(Machine* m) { return m->most_resident_blocks; }
uint64_t epemu_in_flight(Machine* m) { return m->network->in_flight.size(); }
// The length of the program so far in PCT's steps: Settings::program_steps of later runs.
uint64_t epemu_steps(Machine* m) { return m->steps; }
int epemu_pct_depth(uint64_t seed) { return pct_depth(seed); }
const char* epemu_report(Machine* m) { return m->report.c_str(); }

// Places where kernels did something that is defined on a GPU but not in C++, as JSON; only without checks.
const char* epemu_other_values(Machine* m) {
    return with_memory([&]() -> const char* {
        m->findings = "[";
        for (const auto& [pc, one] : m->other_values)
            m->findings += (m->findings.size() > 1 ? ",{" : "{") + one.place + ",\"kind\":" + quote(one.kind) +
                           ",\"kernel\":" + quote(one.kernel) + ",\"text\":" + quote(one.text) + "}";
        m->findings += "]";
        return m->findings.c_str();
    });
}
uint64_t epemu_num_other_values(Machine* m) { return m->other_values.size(); }

// Moves up to `size` - 1 bytes of what kernels printed to `text`; returns how many. Any thread may call it.
size_t epemu_take_output(Machine* m, char* text, size_t size) {
    std::lock_guard<std::mutex> guard(m->output_lock);
    const size_t n = std::min(size - 1, m->output.size());
    memcpy(text, m->output.data(), n);
    text[n] = 0;
    m->output.erase(0, n);
    return n;
}

// Turns checks on until epemu_check_end; call this before the first launch. Returns 0 if there is no address space for
// the checker.
int epemu_check_begin(Machine* m, int plain_volatile, int weak_memory) {
    try {
        m->checker = std::make_shared<Checker>(*m, plain_volatile != 0);
        if (weak_memory) m->checker->weak = std::make_unique<WeakMemory>(m->settings.seed);
        return 1;
    } catch (const std::bad_alloc&) {
        return 0;
    }
}
// Makes the checker keep up to `most` accesses from now on.
void epemu_check_keep_accesses(Machine* m, uint64_t most) { m->checker->kept_accesses = most; }
const AccessRecord* epemu_check_accesses(Machine* m, uint64_t* count) {
    *count = m->checker->accesses.size();
    return m->checker->accesses.data();
}
// Under checks: records events from here on, up to `limit`.
void epemu_record_begin(Machine* m, uint64_t limit, int whole) {
    with_memory([&] { m->recorder = std::make_shared<Recorder>(*m, limit, whole); });
}
const Event* epemu_record_events(Machine* m, uint64_t* count) {
    *count = m->recorder->events().size();
    return m->recorder->events().data();
}
const char* epemu_record_info(Machine* m) {
    return with_memory([&]() -> const char* {
        m->findings = m->recorder->info(*m->checker);
        return m->findings.c_str();
    });
}
// Marks memory that the host allocates uninitialised: reads before the first write are findings.
void epemu_check_unwritten(Machine* m, uint64_t begin, uint64_t end) {
    with_memory([&] {
        if (m->checker) m->checker->fill_unwritten(begin, end);
    });
}
void epemu_check_end(Machine* m) { m->checker.reset(); }
// A synchronisation of a rank's host: its launches up to a ticket have ended; or (rank -1) all hosts have met.
void epemu_host_sync(Machine* m, int rank, int64_t ticket) {
    with_memory([&] {
        if (rank < 0) m->schedule->hosts_met();
        if (!m->checker) return;
        if (rank < 0) {
            m->checker->host_met();
        } else {
            m->checker->host_waited(rank, ticket);
        }
    });
}
// Under checks: Python reads or writes memory that kernels may use, at a line of its program.
void epemu_host_access(Machine* m, int rank, uint64_t address, uint64_t bytes, int writes, const char* where) {
    with_memory([&] {
        if (m->checker) m->checker->host_access(rank, address, bytes, writes != 0, where);
    });
}
// The waiting threads and their places at the time when only a time limit could end the run; empty if there was none.
const char* epemu_quiescence(Machine* m) { return m->quiescence.c_str(); }
const char* epemu_polls(Machine* m) { return told(m, &Checker::polls); }
const char* epemu_clocks(Machine* m) { return told(m, &Checker::clocks); }
const char* epemu_choices(Machine* m) { return told(m, &Checker::choices); }
const char* epemu_findings(Machine* m) { return told(m, &Checker::findings); }

}  // extern "C"

// Virtual time as Python sees it (ep_lib/emulator/library.py mirrors these), and values that kernels report.
using namespace epemu;

extern "C" {

// Turns virtual time on; call this before the first launch.
void epemu_time_begin(Machine* m, const HardwareModel* hardware) {
    with_memory([&] {
        auto virtual_time = std::make_unique<VirtualTime>(*m, *hardware);
        m->time = virtual_time.get();
        m->schedule = std::move(virtual_time);  // the earliest event is next, for every seed
    });
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
    with_memory([&] {
        if (rank < 0) {
            m->time->hosts_met();
        } else {
            m->time->host_waited(rank, ticket);
        }
    });
}

void epemu_trace_value(const char* name, double value) {
    if (timed) timed->sample(name, value);
}

}  // extern "C"
