"""The public callables, each with arguments that work, for hostile calls: see :mod:`support.hostile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ep_lib
from ep_lib import Buffer, Fabric, Kernel, Rank, reference, workshop
from ep_lib.compat import ibgda, nixl
from ep_lib.dispatch_combine import Config, DispatchCombineContext, DispatchCombineHandle
from support.hostile import Call

SOURCE = """
#include <ep/platform.cuh>
extern "C" __global__ void k(float* x, int n, float f, bool b) {}
struct S { int a; float* p; };
extern "C" __global__ void s(S v, const long long* q) {}
"""
K, S = Kernel.from_source(SOURCE, "k"), Kernel.from_source(SOURCE, "s")
BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
SHAPE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "hidden": 16, "max_tokens": 4}
X, X128 = np.zeros((4, 16), BF16), np.zeros((4, 128), BF16)
IDX, W = np.array([[0, 1], [1, 2], [3, -1], [2, 3]]), np.ones((4, 2), np.float32)


def nothing(*_: Any) -> None:
    """A main that does nothing."""


def call(title: str, function: Callable[..., Any], /, **arguments: Any) -> Call:
    return Call(title, function, lambda: arguments)


def of_values(folder: Path) -> list[Call]:
    """What needs no rank."""
    file = folder / "kernel.cu"
    file.write_text(SOURCE)
    hardware = ep_lib.HARDWARE["h20-cx7"]
    timeline = ep_lib.simulate(nothing, 1)
    faults: dict[str, Any] = {"broken_links": (), "stopped_ranks": {}, "stalled_links": {}, "delayed_messages": {}}
    pcie = {"allow_nvlink_for_normal_mode": False, "bounce_bytes": 4096, "merge_sender_receiver": False}
    return [
        call("Fabric", Fabric, kind="rc", ranks_per_node=1, p2p=True, queue_pairs=4, queue_depth=64, **faults),
        call("Fabric, faults", lambda **a: ep_lib.spawn(nothing, 2, fabric=Fabric("rc", **a)), **faults),
        call("a link", lambda link: ep_lib.spawn(nothing, 2, fabric=Fabric(broken_links=(link,))), link=(0, 1)),
        call("from_source", Kernel.from_source, source=SOURCE, name="k", filename="k", include=(), defines={}),
        call("from_file", Kernel.from_file, path=file, name="k", include=(), defines={}, options=()),
        call("a define", lambda value: Kernel.from_source(SOURCE, "k", defines={"A": value}), value=1),
        call("an option", lambda option: Kernel.from_source(SOURCE, "k", options=[option]), option="-DA=1"),
        call("a folder", lambda place: Kernel.from_source(SOURCE, "k", include=[place]), place=folder),
        call("compile", K.compile, target="emulator"),
        call("symmetric_bytes", Buffer.symmetric_bytes, world_size=2, dtype="bfloat16", num_sms=4, **SHAPE),
        call("heap_bytes", Buffer.heap_bytes, world_size=2, num_sms=4, **SHAPE),
        call("symmetric_bytes, PCIe", Buffer.symmetric_bytes, world_size=2, **SHAPE, **pcie),
        call("scaled", hardware.scaled, k=2.0),
        call("Link", ep_lib.Link, **{f.name: getattr(hardware.nic, f.name) for f in dataclasses.fields(hardware.nic)}),
        call("Hardware", ep_lib.Hardware, **{f.name: getattr(hardware, f.name) for f in dataclasses.fields(hardware)}),
        call("Rank", Rank, backend=None),
        call("save", timeline.save, path=folder / "t.json"),
    ]


def of_spawn() -> list[Call]:
    in_a_world: dict[str, Any] = {"backend": "emulator", "timeout": None}
    common: dict[str, Any] = {"main": nothing, "ranks": 1, "args": (), "heap_bytes": None, "timeout": None}
    return [
        call("spawn", ep_lib.spawn, **common, backend="emulator", seed=0, fabric=None, transport=None),
        call("check", ep_lib.check, **common, seeds=1, compare_values=True, volatile="relaxed", resident_blocks=None),
        call("simulate", ep_lib.simulate, **common, fabric=None, hardware="h20-cx7"),
        call("init", lambda **a: ep_lib.init(**a).close(), **in_a_world, group=None, seed=0, heap_bytes=None),
        call("Buffer.open", lambda **a: Buffer.open(**a).close(), **in_a_world, group=None, **SHAPE),
    ]


def of_a_rank(rank: Rank) -> list[Call]:
    x = rank.symmetric((4, 4), np.float32)
    args = (x, 1, 1.0, True)
    return [
        call("symmetric", rank.symmetric, shape=4, dtype=np.float32, fill=0),
        Call("free", rank.free, lambda: {"array": rank.symmetric(4, np.float32)}),
        call("offset_of", rank.offset_of, array=x),
        call("peer_address", rank.peer_address, array=x, peer=0),
        call("empty", rank.empty, shape=4, dtype=np.float32),
        call("host_array", rank.host_array, shape=4, dtype=np.float32),
        call("to_device", rank.to_device, array=np.zeros(3)),
        call("to_host", rank.to_host, array=x),
        call("all_gather", rank.all_gather, obj=1),
        call("rank.launch", rank.launch, kernel=K, grid=1, block=1, args=args, shared_bytes=0, uses=()),
        call("kernel.launch", lambda r, g, b: K.launch(r, g, b, *args), r=rank, g=1, b=1),
        call("arguments", lambda x, n, f, b: K.launch(rank, 1, 1, x, n, f, b), x=x, n=0, f=1.0, b=True),
        call("structs", lambda v, q: S.launch(rank, 1, 1, v, q), v=bytes(16), q=np.zeros(4, np.int64)),
        call("Buffer", lambda r: Buffer(r, **SHAPE), r=0),
    ]


def of_a_buffer(rank: Rank, **options: Any) -> list[Call]:
    buffer = Buffer(rank, **SHAPE, num_sms=2, **options)
    recv = buffer.dispatch(X, IDX, W)
    flags = {"async_finish": False, "sorted_by_expert": False}
    new = {"topk_idx": IDX, "topk_weights": W, "num_worst_tokens": 0, "expert_alignment": 1, "copy": True}
    return [
        call("dispatch", buffer.dispatch, x=X, **new, **flags),
        call("dispatch again", buffer.dispatch, x=X, topk_idx=None, handle=recv.handle, topk_weights=W),
        call("dispatch FP8", lambda x, s: buffer.dispatch((x, s), IDX), x=np.zeros((4, 16), FP8), s=W),
        call("combine", buffer.combine, x=recv.x, handle=recv.handle, topk_weights=W, bias=None, **flags),
        call("combine_input", buffer.combine_input, handle=recv.handle, like=X),
        call("no low latency", buffer.low_latency_dispatch, x=X, topk_idx=IDX),
    ]


def of_low_latency(rank: Rank) -> list[Call]:
    shape = {**SHAPE, "hidden": 128}
    buffer = Buffer(rank, **shape, num_sms=2, num_max_dispatch_tokens_per_rank=4)
    sent = buffer.low_latency_dispatch(X128, IDX, use_fp8=False)
    some: dict[str, Any] = {"topk_idx": IDX, "topk_weights": W, "async_finish": False}
    return [
        call("low_latency_dispatch", buffer.low_latency_dispatch, x=X128, use_fp8=True, **some),
        call("low_latency_combine", buffer.low_latency_combine, x=sent.recv_x, handle=sent.handle, out=None, **some),
        call("next buffer", buffer.get_next_low_latency_combine_buffer, handle=sent.handle),
        call("mask", buffer.low_latency_update_mask_buffer, rank=1, mask=True),
        call("masks", buffer.low_latency_query_mask_buffer, out=np.zeros(1, np.int32)),
    ]


def of_the_reference() -> list[Call]:
    xs, idxs, weights = [X] * 2, [IDX] * 2, [W] * 2
    came = reference.dispatch(xs, idxs, weights, num_experts=4)
    ll = reference.low_latency_dispatch([X128] * 2, idxs, num_experts=4, max_tokens=4, use_fp8=False)
    rows, _ = reference.expert_rows(came[0].topk_idx, experts=2)
    fp8, scales = reference.quantize_fp8(X128)
    routed: dict[str, Any] = {"topk_idxs": idxs, "topk_weights": weights, "num_experts": 4}
    local = {"topk_idx": came[0].topk_idx, "experts": 2, "alignment": 1}
    return [
        call("layout", reference.layout, topk_idx=IDX, num_experts=4, world_size=2),
        call("dispatch", reference.dispatch, xs=xs, **routed),
        call("an array", lambda x, i, w: reference.dispatch([x, X], [i, IDX], [w, W], num_experts=4), x=X, i=IDX, w=W),
        call("combine", reference.combine, ys=[each.x for each in came], **routed, biases=None),
        call("expert_rows", reference.expert_rows, **local),
        call("reduce", reference.reduce_expert_rows, y=np.zeros((len(rows), 16), BF16), **local),
        call(
            "low_latency_combine",
            reference.low_latency_combine,
            ys=[e.x for e in ll],
            received=ll,
            topk_weights=weights,
        ),
        call("weights", reference.weights_per_rank, topk_idx=IDX, topk_weights=W, experts_per_rank=2, world_size=2),
        call("quantize_fp8", reference.quantize_fp8, x=X128),
        call("dequantize_fp8", reference.dequantize_fp8, q=fp8, scales=scales),
    ]


def of_dispatch_combine(rank: Rank) -> list[Call]:
    shape: dict[str, Any] = {"world_size": 1, "rank": 0, "hidden_dim": 16, "max_tokens_per_rank": 4}
    shape |= {"num_experts_per_rank": 4, "num_experts_per_token": 2}
    config = Config(**shape)
    context = DispatchCombineContext(config, rank)
    context.initialize()
    handle = DispatchCombineHandle(context)
    batch = {"tokens": X, "expert_ids": IDX, "weights": W}

    def round_trip(outputs: Any, **given: Any) -> None:
        handle.prepare_inference(**given)
        handle.launch_dispatch()
        handle.launch_combine(outputs)

    return [
        call("Config", Config, **{f.name: getattr(config, f.name) for f in dataclasses.fields(config)}),
        call("DispatchCombineContext", DispatchCombineContext, config=config, rank=rank, network="rc"),
        call("DispatchCombineHandle", DispatchCombineHandle, context=context),
        call("prepare_inference", handle.prepare_inference, **batch, num_tokens=4),
        call("round trip", round_trip, **batch, num_tokens=None, outputs=None),
    ]


def of_the_workshop(folder: Path) -> list[Call]:
    """What notebooks call."""
    from ep_lib.workshop import notebook, pcie_model
    from ep_lib.workshop.course import ladders

    setting = pcie_model.Setting(2)
    question: dict[str, Any] = {"key": "00.hostile", "question": "Which?", "choices": ["a", "b"], "answer": None}
    some: dict[str, Any] = {"backend": "emulator", "fabric": None, "hardware": None, "rungs": None}
    return [
        call("python_piece", workshop.python_piece, exercise="10_plan", mine=folder),
        call("check", lambda e: workshop.check(e, folder), e="no such exercise"),
        call("its folder", lambda mine: workshop.grade("01", mine), mine=folder),
        call("map", workshop.map, notebook="01"),
        call("puzzle", workshop.puzzle, number="00.1"),
        call("ladder", ladders.run, number="no such ladder", **some),
        call("use_mine", lambda mine: workshop.use_mine(mine).stop(), mine=folder),
        call("show_source", notebook.show_source, file="tutorial_kernels/01_write_signal.cu", mark=""),
        call("a name", lambda name: notebook.show_source("tutorial_kernels/01_write_signal.cu", name), name="write"),
        call("predict", notebook.predict, **question),
        call("expect", lambda kind: notebook.expect(kind).__enter__(), kind=ep_lib.errors.EpError),
        call("Setting", lambda **a: pcie_model.Setting(**a).check(), **dataclasses.asdict(setting)),
    ]


def of_viz() -> list[Call]:
    """Pictures and pages; what one says of its data is an ArgumentError that shows it."""
    from ep_lib import viz

    timeline, rounds = ep_lib.simulate(nothing, 1), {"written": [(0, 1), (2, 3)], "read": [(1, 2), (3, 4)]}
    title: dict[str, Any] = {"title": None}
    return [
        call("interleavings", viz.interleavings, runs={"a": [0, 1]}, names=None, unit="turn", **title),
        call("outcomes", viz.outcomes, counts={"a": {"b": 1}}, **title),
        call("calculator", viz.calculator, reports=None, published=(), **title),
        call("dispatch_flow", viz.dispatch_flow, topk_idx=[IDX], num_experts=4, **title),
        call("ring_step_by_step", viz.ring_step_by_step, **rounds, num_slots=2, **title),
        call("slots_over_time", viz.slots_over_time, **rounds, num_slots=2, **title),
        call("slot_layout", viz.slot_layout, sources=[[0, 1]], labels=None, capacity=None, **title),
        call("networks_by_seed", viz.networks_by_seed, seeds=1, source=0, target=1),
        call("time_travel", viz.time_travel, main=nothing, ranks=1, seed=0, fabric=None, steps=10),
        call("run_timeline", viz.run_timeline, run=timeline, lanes="auto", begin_us=None, end_us=None),
        call("samples_over_time", viz.samples_over_time, run=timeline, names=None, limits=None),
        call("fabrics_side_by_side", viz.fabrics_side_by_side, rc=timeline, srd=timeline, source=0, target=1),
        call("bytes_between_ranks", viz.bytes_between_ranks, matrix=[[1, 2], [3, 4]], **title),
        call("load_per_expert", viz.load_per_expert, load=[1, 2], ranks=None, **title),
        call("routed_text", viz.routed_text, text=b"abc", owner=[0, 1, 0], columns=80),
        call("findings", viz.findings, report=ep_lib.check(nothing, 1, seeds=1)),
    ]


def of_compat(rank: Rank) -> list[Call]:
    signal, data = rank.symmetric(4, np.uint64), rank.symmetric(4, np.float32)
    host = nixl.DeviceHost(rank)
    host.register(data)
    host.register(signal)
    write = host.create_write_req(data, 0)
    ptr = data.ctypes.data
    name, descs = host.add_remote_agent(host.get_metadata()), host.serialize_xfer_descs(ptr, 16, 0)
    return [
        call("init_efa", ibgda.init_efa_device_state, rank=rank, num_channels=1, num_devices=1),
        call("DeviceHost", nixl.DeviceHost, name=rank),
        call("register", host.register, array=data),
        call("deregister", host.deregister, what=None),
        call("create_write_req", host.create_write_req, local=data, peers=0, remote=data),
        call("create_signal_req", host.create_signal_req, signals=signal, peers=0),
        call("create_gpu_req", host.create_gpu_req, request=write),
        call("handle_array", host.handle_array, handles=[host.create_gpu_req(write)]),
        call("prep_local_view", host.prep_local_view, arrays=[data]),
        call("prep_remote_view", host.prep_remote_view, entries=[(data, 0)]),
        call("an entry", lambda entry: host.prep_remote_view([entry]), entry=(data, 0)),
        call("release", host.release, what=-5),
        call("register_vram", host.register_vram, ptr=ptr, size=16, device_id=0),
        call("register_dram", host.register_dram, ptr=ptr, size=16),
        call("serialize_xfer_descs", host.serialize_xfer_descs, ptr=ptr, size=16, device_id=0),
        call("add_remote_agent", host.add_remote_agent, remote_meta=host.get_metadata()),
        call("publish", host.publish, name="data", descs=descs),
        call(
            "the guide's create_write_req",
            host.create_write_req,
            local=ptr,
            peers=16,
            device_id=0,
            remote_descs=descs,
            peer_name=name,
        ),
        call("a peer's signals", host.create_signal_req, signals=descs, peers=name),
        call("read_metadata", lambda path: host.read_metadata(path, 0.001), path="/proc/self/no-such/folder"),
        call("connect", lambda address, port: host.connect(address, port, 0.001), address="127.0.0.1", port=1),
        call("transfer", host.transfer, request=write, notification=b"x"),
    ]


def of_torch(rank: Rank) -> list[Call]:
    import torch

    from ep_lib import moe
    from ep_lib.moe import layer, routing

    class Same(torch.nn.Module):
        def forward(self, x: Any, *_: Any) -> Any:
            return x

    x, idx, weights = torch.zeros(4, 16, dtype=torch.bfloat16), torch.tensor(IDX), torch.ones(4, 2)
    buffer = Buffer(rank, **SHAPE, num_sms=2)
    sent = moe.dispatch(buffer, x, idx, weights)
    w_in, w_out = torch.zeros(4, 16, 8), torch.zeros(4, 8, 16)
    whole = layer.MoELayer.create(16, 8, 4, 2, torch.Generator())
    sizes = {"hidden": 16, "ffn": 8, "num_experts": 4, "top_k": 2}
    routed = {"topk_idx": idx, "topk_weights": weights}
    grouped = {"sorted_by_expert": False}
    more = {**grouped, "expert_alignment": 1, "async_finish": False}
    return [
        call("moe.dispatch", moe.dispatch, buffer=buffer, x=x, **routed, handle=None, num_worst_tokens=0, **more),
        call("moe.combine", moe.combine, buffer=buffer, x=sent.x, handle=sent.handle, topk_weights=None, **grouped),
        call("ExpertParallel", layer.ExpertParallel, where=buffer, experts=Same(), gate=None, num_worst_tokens=0),
        call("forward", layer.ExpertParallel(buffer, Same()), x=x, **routed),
        call("route", routing.route, logits=torch.zeros(4, 4), top_k=2),
        call("load_per_expert", routing.load_per_expert, topk_idx=idx, num_experts=4),
        call("load_balancing_loss", routing.load_balancing_loss, routing=routing.route(torch.zeros(4, 4), 2)),
        call("of_rank", layer.ExpertRange.of_rank, num_experts=4, rank=0, world_size=2),
        call("Experts", layer.Experts, w_in=w_in, w_out=w_out),
        call("experts", layer.Experts(w_in, w_out), x=x, **routed),
        call("create", layer.MoELayer.create, **sizes, generator=torch.Generator()),
        call("layer", whole, x=torch.zeros(4, 16), buffer=None),
        call("shard", whole.shard, rank=0, world_size=2),
    ]


def of_deep_ep(rank: Rank) -> list[Call]:
    import torch

    from ep_lib.compat import deep_ep

    buffer = deep_ep.Buffer(rank, 1 << 10)
    x, idx, weights = torch.zeros(4, 128, dtype=torch.bfloat16), torch.tensor(IDX), torch.ones(4, 2)
    _, _, choices, sent, _ = buffer.get_dispatch_layout(idx, 4)
    layout: dict[str, Any] = {"is_token_in_rank": sent, "num_tokens_per_expert": choices, "topk_idx": idx}
    beside: dict[str, Any] = {"config": None, "previous_event": None, "async_finish": False}
    came, _, came_weights, _, handle, _ = buffer.dispatch(x, **layout, topk_weights=weights)
    rows, _, low, _, _ = buffer.low_latency_dispatch(x, idx, 8, 4, use_fp8=False)
    sizes: dict[str, Any] = {"num_max_dispatch_tokens_per_rank": 8, "num_experts": 4}
    flags: dict[str, Any] = {"async_finish": False, "return_recv_hook": False}
    fp8, scales = x.to(torch.float8_e4m3fn), torch.ones(4, 1)
    elastic, room = deep_ep.ElasticBuffer(rank, 2 << 20, num_max_tokens_per_rank=8), {"num_max_tokens_per_rank": 8}
    wide: dict[str, Any] = {"num_experts": 4, "expert_alignment": 1, "do_cpu_sync": None, "do_expand": False}
    later: dict[str, Any] = {"num_sms": 0, "num_qps": 0, "previous_event": None, "async_with_compute_stream": False}
    mine, _, by_expert, grouped, _ = elastic.dispatch(x, idx, weights, num_experts=4, do_expand=True)
    return [
        call("deep_ep.Buffer", deep_ep.Buffer, group=rank, num_nvl_bytes=0, explicitly_destroy=False, comm=None),
        call("deep_ep.Config", deep_ep.Config, num_sms=2, num_max_nvl_chunked_send_tokens=2),
        call("hint", deep_ep.Config().get_nvl_buffer_size_hint, hidden_bytes=128, num_ranks=2),
        call("low latency hint", buffer.get_low_latency_rdma_size_hint, **sizes, hidden=128, num_ranks=2),
        call("get_dispatch_layout", buffer.get_dispatch_layout, topk_idx=idx, num_experts=4, previous_event=None),
        call("dispatch", buffer.dispatch, x=x, **layout, topk_weights=weights, expert_alignment=1, **beside),
        call("dispatch FP8", lambda x, s: buffer.dispatch((x, s), **layout), x=fp8, s=scales),
        call("dispatch again", buffer.dispatch, x=x, handle=handle, async_finish=False),
        call("combine", buffer.combine, x=came, handle=handle, topk_weights=came_weights, bias=None, **beside),
        call("low_latency_dispatch", buffer.low_latency_dispatch, x=x, topk_idx=idx, **sizes, use_fp8=True, **flags),
        call("round_scale", buffer.low_latency_dispatch, x=x, topk_idx=idx, **sizes, round_scale=True, use_ue8m0=False),
        call("low_latency_combine", buffer.low_latency_combine, x=rows, topk_idx=idx, topk_weights=weights, handle=low),
        call("mask", buffer.low_latency_update_mask_buffer, rank_to_mask=1, mask=True),
        call("masks", buffer.low_latency_query_mask_buffer, mask_status=torch.zeros(1, dtype=torch.int32)),
        call("raw", buffer.get_local_buffer_tensor, dtype=torch.int32, size=torch.Size([4]), offset=0),
        call("reserve", buffer.reserve, max_tokens=4, hidden=128, num_experts=4, top_k=2, like=x),
        call("ElasticBuffer", deep_ep.ElasticBuffer, **{"group": rank, "hidden": 128} | room, num_topk=2, sl_idx=3),
        call("size hint", elastic.get_buffer_size_hint, group=rank, **room, hidden=128, num_topk=0),
        call("num_sms", elastic.get_theoretical_num_sms, num_experts=4, num_topk=2),
        call("num_qps", elastic.get_theoretical_num_qps, num_sms=4),
        call("elastic dispatch", elastic.dispatch, x=x, topk_idx=idx, topk_weights=weights, **wide, **room, **later),
        call("elastic FP8", lambda x, s: elastic.dispatch((x, s), idx, num_experts=4), x=fp8, s=scales),
        call("elastic again", elastic.dispatch, x=x, topk_weights=weights, handle=grouped, do_expand=True),
        call("elastic combine", elastic.combine, x=mine, handle=grouped, topk_weights=by_expert, bias=None, **later),
    ]
