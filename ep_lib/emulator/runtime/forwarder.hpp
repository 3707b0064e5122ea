// Forwards NIC operations to other hosts: operations on ranks whose heaps this process cannot map.
//
// Each pair of ranks on different hosts has two TCP connections, one for the operations of each. Python makes them
// after both ends have proved that they know the run's secret. Frames go one way (a header and the bytes of a put),
// acknowledgements come back (with the bytes of a get). The reader executes each frame in the memory of its own rank,
// in the order of the connection, then acknowledges it.
//
// Threads of each connection: at the poster's end one writes frames and one reads acknowledgements, at the target's end
// one does both. The poster's reader never waits for its writer, so full buffers cannot deadlock. Incoming frames are
// not trusted: a frame outside of the heap ends the connection.
#pragma once
#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace epemu {

struct Machine;
struct NetOp;

class Forwarder {
  public:
    explicit Forwarder(Machine& m);
    ~Forwarder();

    // Adds the connections to a rank: for our operations there, and for its operations here. Takes ownership of both.
    void add(int rank, int ours, int theirs);

    bool leads_to(int rank) const { return links_.count(rank) != 0; }
    // Sends an operation whose turn it is, and sets its number (NetOp::forwarded).
    void send(NetOp& op);
    // Whether the operation was executed and, for a get, its data has arrived.
    bool is_done(const NetOp& op) const;
    // Whether a connection to a rank has ended.
    bool has_ended(int rank) const;

    std::atomic<uint64_t> sent_bytes{0}, received_bytes{0};  // over TCP, with headers of frames

  private:
    struct Frame;
    struct Link;
    void write_frames(Link& link);
    void read_acknowledgements(Link& link);
    void serve(Link& link);
    bool carry_out(const Frame& frame, std::vector<char>& data);
    bool write_all(Link& link, int socket, const void* data, size_t bytes);
    bool read_all(Link& link, int socket, void* data, size_t bytes);
    char* in_own_heap(uint64_t offset, uint64_t bytes) const;

    Machine& m_;
    std::map<int, std::unique_ptr<Link>> links_;
};

}  // namespace epemu
