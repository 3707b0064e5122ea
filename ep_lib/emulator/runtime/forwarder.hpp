// What NICs of other hosts carry: operations on the memory of ranks whose heaps this process cannot map.
//
// Each pair of ranks on different hosts has two TCP connections, one for the operations of each. Python makes them, and
// both ends have proved by then that they know the run's secret. On a connection go frames one way, a header and the
// bytes of a put; back come acknowledgements, with the bytes of a get. The reader of a frame carries it out in the memory
// of its own rank, in the order of the connection, then acknowledges it.
//
// Threads of each connection: one writes frames or reads acknowledgements (two threads at the poster's end), one does
// both at the target's end. No reader ever waits for what its own side writes to be read by a thread that waits for it,
// so full buffers cannot deadlock. Nothing that arrives is trusted: a frame that does not lie in the heap ends the
// connection.
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

    // Connections to a rank: for our operations there, and for its operations here. This owns both from now on.
    void add(int rank, int ours, int theirs);

    bool leads_to(int rank) const { return links_.count(rank) != 0; }
    // Hands over an operation whose turn it is; numbers it (NetOp::forwarded).
    void send(NetOp& op);
    // Whether it was carried out, and what it gets has come.
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
