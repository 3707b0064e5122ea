// Threads that carry operations between hosts. See forwarder.hpp.
#include "forwarder.hpp"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "machine.hpp"
#include "network.hpp"

namespace epemu {
namespace {

constexpr uint64_t kNoSignal = ~0ull;
constexpr uint64_t kMostBytes = 1ull << 40;  // of a frame

struct Acknowledgement {
    uint64_t number;  // of the frame
    uint64_t bytes;   // of data that follow, for a get
};

}  // namespace

struct Forwarder::Frame {
    uint64_t number;  // counts the connection's frames from 1
    uint64_t at;      // offset in the target's heap, to write to or (a get) to read from
    uint64_t bytes;   // of data that follow, or that a get wants
    uint64_t signal;  // offset in the target's heap, or kNoSignal
    uint64_t value;
    int32_t value_bytes;
    int32_t signal_op;
    int32_t is_get;
    int32_t reserved;
};

struct Forwarder::Link {
    int ours, theirs;  // sockets
    std::atomic<bool> ended{false};
    std::atomic<uint64_t> done{0};  // frames that were acknowledged
    uint64_t posted = 0;            // frames; only the scheduler uses it
    std::mutex lock;                // guards the members below
    std::condition_variable changed;
    std::deque<std::vector<char>> to_write;
    std::map<uint64_t, Range> gets;  // by frame: the destination of its get
    bool closing = false;
    std::thread threads[3];
};

Forwarder::Forwarder(Machine& m) : m_(m) {}

Forwarder::~Forwarder() {
    for (auto& [rank, link] : links_) {
        {
            std::lock_guard<std::mutex> guard(link->lock);
            link->closing = true;
        }
        link->changed.notify_all();
        shutdown(link->ours, SHUT_RDWR);
        shutdown(link->theirs, SHUT_RDWR);
    }
    for (auto& [rank, link] : links_) {
        for (auto& thread : link->threads) thread.join();
        close(link->ours);
        close(link->theirs);
    }
}

void Forwarder::add(int rank, int ours, int theirs) {
    auto& link = links_[rank] = std::make_unique<Link>();
    Link* const l = link.get();
    l->ours = ours;
    l->theirs = theirs;
    l->threads[0] = std::thread([this, l] { write_frames(*l); });
    l->threads[1] = std::thread([this, l] { read_acknowledgements(*l); });
    l->threads[2] = std::thread([this, l] { serve(*l); });
}

bool Forwarder::has_ended(int rank) const {
    const auto found = links_.find(rank);
    return found != links_.end() && found->second->ended;
}

bool Forwarder::is_done(const NetOp& op) const { return links_.at(op.target_rank)->done >= op.forwarded; }

void Forwarder::send(NetOp& op) {
    Link& link = *links_.at(op.target_rank);
    const auto base = reinterpret_cast<uintptr_t>(m_.heaps) + op.target_rank * m_.heap_stride;
    const bool is_get = op.kind == NetKind::kGet;
    Frame frame = {};
    frame.number = op.forwarded = ++link.posted;
    frame.is_get = is_get;
    frame.bytes = op.bytes;
    frame.at = op.bytes ? (is_get ? op.from : op.to) - base : 0;
    frame.signal = op.signal ? op.signal - base : kNoSignal;
    frame.value = op.value;
    frame.value_bytes = op.value_bytes;
    frame.signal_op = op.signal_op;
    std::vector<char> message(sizeof frame + (is_get ? 0 : op.bytes));
    memcpy(message.data(), &frame, sizeof frame);
    if (!is_get && op.bytes) memcpy(message.data() + sizeof frame, reinterpret_cast<const void*>(op.from), op.bytes);
    {
        std::lock_guard<std::mutex> guard(link.lock);
        if (is_get) link.gets[frame.number] = {op.to, op.to + op.bytes, true};
        link.to_write.push_back(std::move(message));
    }
    link.changed.notify_one();
}

// ---- The poster's end ------------------------------------------------------------------------------------------------

void Forwarder::write_frames(Link& link) {
    for (;;) {
        std::vector<char> message;
        {
            std::unique_lock<std::mutex> guard(link.lock);
            link.changed.wait(guard, [&] { return link.closing || !link.to_write.empty(); });
            if (link.to_write.empty()) return;  // closing
            message = std::move(link.to_write.front());
            link.to_write.pop_front();
        }
        if (!write_all(link, link.ours, message.data(), message.size())) return;
    }
}

void Forwarder::read_acknowledgements(Link& link) {
    Acknowledgement come;
    while (read_all(link, link.ours, &come, sizeof come)) {
        Range wanted = {0, 0, true};
        {
            std::lock_guard<std::mutex> guard(link.lock);
            const auto found = link.gets.find(come.number);
            if (found != link.gets.end()) {
                wanted = found->second;
                link.gets.erase(found);
            }
        }
        const bool is_next = come.number == link.done + 1;
        if (!is_next || come.bytes != wanted.end - wanted.begin) break;
        if (come.bytes && !read_all(link, link.ours, reinterpret_cast<void*>(wanted.begin), come.bytes)) return;
        link.done = come.number;
    }
    link.ended = true;
}

// ---- The target's end ------------------------------------------------------------------------------------------------

void Forwarder::serve(Link& link) {
    Frame frame;
    std::vector<char> data;
    uint64_t number = 0;
    while (read_all(link, link.theirs, &frame, sizeof frame)) {
        if (frame.number != ++number || frame.bytes > kMostBytes || !in_own_heap(frame.at, frame.bytes)) break;
        data.resize(frame.bytes);
        if (!frame.is_get && frame.bytes && !read_all(link, link.theirs, data.data(), frame.bytes)) return;
        if (!carry_out(frame, data)) break;
        const Acknowledgement done = {frame.number, frame.is_get ? frame.bytes : 0};
        if (!write_all(link, link.theirs, &done, sizeof done)) return;
        if (done.bytes && !write_all(link, link.theirs, data.data(), data.size())) return;
    }
    link.ended = true;
    shutdown(link.theirs, SHUT_RDWR);
}

char* Forwarder::in_own_heap(uint64_t offset, uint64_t bytes) const {
    if (offset > m_.settings.heap_span || bytes > m_.settings.heap_span - offset) return nullptr;
    return m_.heaps + m_.settings.home * m_.heap_stride + offset;
}

// False for a frame that no rank would post.
bool Forwarder::carry_out(const Frame& frame, std::vector<char>& data) {
    char* const at = in_own_heap(frame.at, frame.bytes);
    if (frame.bytes) memcpy(frame.is_get ? data.data() : at, frame.is_get ? at : data.data(), frame.bytes);
    if (frame.signal == kNoSignal) return true;
    if ((frame.value_bytes != 4 && frame.value_bytes != 8) || frame.signal % frame.value_bytes) return false;
    char* const signal = in_own_heap(frame.signal, frame.value_bytes);
    if (!signal) return false;
    std::atomic_thread_fence(std::memory_order_release);  // data, then its signal
    if (frame.signal_op != EPEMU_SIGNAL_ADD) {
        write_raw(reinterpret_cast<uintptr_t>(signal), frame.value, frame.value_bytes);
        return true;
    }
    if (frame.value_bytes == 8) {
        __atomic_fetch_add(reinterpret_cast<uint64_t*>(signal), frame.value, __ATOMIC_SEQ_CST);
    } else {
        __atomic_fetch_add(reinterpret_cast<uint32_t*>(signal), static_cast<uint32_t>(frame.value), __ATOMIC_SEQ_CST);
    }
    return true;
}

// ---- Sockets ---------------------------------------------------------------------------------------------------------

bool Forwarder::write_all(Link& link, int socket, const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes) {
        const ssize_t n = ::send(socket, from, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            link.ended = true;
            return false;
        }
        from += n;
        bytes -= static_cast<size_t>(n);
        sent_bytes += static_cast<uint64_t>(n);
    }
    return true;
}

bool Forwarder::read_all(Link& link, int socket, void* data, size_t bytes) {
    char* to = static_cast<char*>(data);
    while (bytes) {
        const ssize_t n = recv(socket, to, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            link.ended = true;
            return false;
        }
        to += n;
        bytes -= static_cast<size_t>(n);
        received_bytes += static_cast<uint64_t>(n);
    }
    return true;
}

}  // namespace epemu
