// Makes a proxy's commands for a ring (<ep/proxy_ring.cuh>) from this rank's pointers into the symmetric heap.
#pragma once
#include <ep/peer.cuh>
#include <ep/proxy_command.cuh>

namespace ep {

EP_DEVICE uint64_t heap_offset(const void* mine) {
    return reinterpret_cast<uint64_t>(mine) - reinterpret_cast<uint64_t>(detail::heap_base(rank()));
}

EP_DEVICE ProxyCommand proxy_command(ProxyOp op, int peer, int queue_pair = 0) {
    ProxyCommand command = {};
    command.op = op;
    command.peer = static_cast<uint16_t>(peer);
    command.queue_pair = static_cast<uint16_t>(queue_pair);
    return command;
}

EP_DEVICE ProxyCommand proxy_write(void* dst_mine, const void* src, size_t bytes, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(kProxyWrite, peer, queue_pair);
    command.target = heap_offset(dst_mine);
    command.source = heap_offset(src);
    command.bytes = bytes;
    return command;
}

EP_DEVICE ProxyCommand proxy_write_signal(void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                                          uint64_t value, bool add, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_write(dst_mine, src, bytes, peer, queue_pair);
    command.op = add ? kProxyWriteAddSignal : kProxyWriteSetSignal;
    command.signal = heap_offset(signal_mine);
    command.value = value;
    return command;
}

EP_DEVICE ProxyCommand proxy_add(void* counter_mine, uint64_t value, int size, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(size == sizeof(uint32_t) ? kProxyAdd32 : kProxyAdd64, peer, queue_pair);
    command.signal = heap_offset(counter_mine);
    command.value = value;
    return command;
}

EP_DEVICE ProxyCommand proxy_read(void* dst, const void* src_mine, size_t bytes, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(kProxyRead, peer, queue_pair);
    command.target = heap_offset(dst);
    command.source = heap_offset(src_mine);
    command.bytes = bytes;
    return command;
}

}  // namespace ep
