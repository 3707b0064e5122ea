"""Low-latency mode against the oracle: bit for bit, for any routing, seed and timing, on the emulator and on GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd
from support.dispatch_combine_cases import BF16, Case, to_input, to_numpy
from support.low_latency_cases import check_case, experts, low_latency_case, receive, run_case

from ep_lib import Buffer, Rank, spawn
from ep_lib.jit.kernel import Kernel
from ep_lib.moe.low_latency.memory import packets_per_token


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))  # every form with every number of SMs
def test_against_the_oracle(part: int, seeds: int) -> None:
    """Each seed has its own shapes, routing, blocks and interleaving. Three rounds use the double buffer again."""
    fp8, hooks, sms = part % 2 == 1, part % 4 > 1, (None, 1, 2, 5)[part // 4 % 4]
    for seed in range(part, part + 2 * seeds, 16):
        case = low_latency_case(seed, fp8=fp8, max_tokens=9)
        arguments = (case, fp8, 3, hooks, False, "", sms)
        check_case(case, fp8, spawn(run_case, case.world_size, "emulator", seed=seed, args=arguments))


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize(("hooks", "asynchronous"), [(False, False), (True, False), (False, True)])
def test_every_way_to_wait(spmd: Spmd, kind: str, hooks: bool, asynchronous: bool) -> None:
    case = low_latency_case(5, fp8=True, world_size=2, max_tokens=20)
    check_case(case, True, spmd(run_case, 2, case, True, 3, hooks, asynchronous, kind))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_routing(data: st.DataObject) -> None:
    """0 tokens, as many as there may be, all to one expert, nowhere, the same expert twice."""
    ranks, top_k, per_rank = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)), data.draw(st.integers(2, 6))
    most = data.draw(st.integers(1, 6))
    expert = st.integers(-1, ranks * per_rank - 1)
    idx = [
        np.array(
            data.draw(st.lists(st.lists(expert, min_size=top_k, max_size=top_k), max_size=most)), np.int64
        ).reshape(-1, top_k)
        for _ in range(ranks)
    ]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    xs = [rng.standard_normal((len(i), 128)).astype(BF16) for i in idx]
    weights = [rng.standard_normal(i.shape).astype(np.float32) for i in idx]
    case = Case(ranks * per_rank, top_k, 128, most, "bfloat16", xs, idx, weights)
    if top_k <= case.num_experts:
        check_case(
            case, True, spawn(run_case, ranks, "emulator", seed=data.draw(st.integers(0, 99)), args=(case, True))
        )


def test_all_to_one_expert_and_the_most_tokens() -> None:
    case = low_latency_case(3, fp8=False, world_size=3, max_tokens=40)
    rng = np.random.default_rng(0)
    case = dataclasses.replace(
        case,
        xs=[rng.standard_normal((40, case.hidden)).astype(BF16) for _ in range(3)],
        topk_idx=[np.full((40, case.top_k), 1) for _ in range(3)],
        topk_weights=[rng.standard_normal((40, case.top_k)).astype(np.float32) for _ in range(3)],
    )
    results = spawn(run_case, 3, "emulator", args=(case, False, 3))
    assert [r[0][2].sum() for r in results] in ([120, 0, 0], [0, 120, 0], [0, 0, 120])
    check_case(case, False, results)


@pytest.mark.extended
def test_1024_tokens_of_two_ranks() -> None:
    """More rows than a block scatters at once, and the most tokens that there may be."""
    rng = np.random.default_rng(1)
    idx = [np.argsort(rng.random((1024, 4)), axis=1)[:, :2] for _ in range(2)]
    xs = [rng.standard_normal((1024, 8)).astype(BF16) for _ in range(2)]
    case = Case(4, 2, 8, 1024, "bfloat16", xs, idx, [rng.random((1024, 2)).astype(np.float32) for _ in range(2)])
    check_case(case, False, spawn(run_case, 2, "emulator", args=(case, False)))


def _doubled(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return x * BF16(2)


def overlapping(rank: Rank, case: Case) -> Any:
    """Two micro-batches: while one is under way, the other computes."""
    me = rank.rank
    x, idx, weights = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx, case.topk_weights))
    twice = to_input(rank, _doubled(case.xs[me]))
    arguments = case.buffer_arguments() | {"max_tokens": 1}
    results = []
    with Buffer(rank, **arguments, num_max_dispatch_tokens_per_rank=case.max_tokens) as buffer:
        for _ in range(3):
            first = buffer.low_latency_dispatch(x, idx, False, return_recv_hook=True)
            second = buffer.low_latency_dispatch(twice, idx, False, return_recv_hook=True)
            backs = []
            for sent in (first, second):
                sent.hook()
                rank.synchronize()
                rows, scales, counts = receive(sent, False)
                y = to_input(rank, experts(me, rows, scales, counts))
                backs.append(buffer.low_latency_combine(y, idx, weights, sent.handle, return_recv_hook=True))
                results.append([rows, scales, counts, to_numpy(y, "bfloat16")])
            for i, back in enumerate(backs):
                back.hook()
                rank.synchronize()
                results[i - 2].append(to_numpy(back.out, "bfloat16"))
    return results


def test_two_micro_batches_at_once(spmd: Spmd) -> None:
    case = low_latency_case(11, fp8=False, world_size=2, max_tokens=12)
    results = spmd(overlapping, 2, case)
    check_case(case, False, [r[::2] for r in results])
    double = dataclasses.replace(case, xs=[_doubled(x) for x in case.xs])
    check_case(double, False, [r[1::2] for r in results])


def test_an_old_handle_is_as_good_as_a_new_one(spmd: Spmd) -> None:
    """Nothing of a dispatch lies in the double buffer once it has been received."""
    case = low_latency_case(4, fp8=False, world_size=2, max_tokens=7)

    def main(rank: Rank) -> Any:
        me = rank.rank
        x, idx, weights = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx, case.topk_weights))
        arguments = case.buffer_arguments() | {"max_tokens": 1}
        with Buffer(rank, **arguments, num_max_dispatch_tokens_per_rank=case.max_tokens) as buffer:
            old = buffer.low_latency_dispatch(x, idx, False)
            for tokens in (0, 1, 0, 1, 0):
                buffer.low_latency_dispatch(x[:tokens], idx[:tokens], False)
            rank.synchronize()
            rows, scales, counts = receive(old, False)
            y = experts(me, rows, scales, counts)
            out = buffer.low_latency_combine(to_input(rank, y), idx, weights, old.handle).out
            rank.synchronize()
            return [(rows, scales, counts, y, to_numpy(out, "bfloat16"))]

    check_case(case, False, spmd(main, 2))


def captured(rank: Rank, case: Case) -> Any:
    """A graph of two dispatches and combines, replayed with other inputs."""
    import torch

    torch.cuda.set_device(rank.xp.cuda.Device().id)
    me, results = rank.rank, []
    x, idx, weights = (to_input(rank, a[me], "torch") for a in (case.xs, case.topk_idx, case.topk_weights))
    arguments = case.buffer_arguments() | {"max_tokens": 1}
    with Buffer(rank, **arguments, num_max_dispatch_tokens_per_rank=case.max_tokens) as buffer:

        def step() -> Any:
            sent = buffer.low_latency_dispatch(x, idx, False, return_recv_hook=True)
            sent.hook()
            y = (sent.recv_x.float() * 0.5 + me).bfloat16()
            return sent, y, buffer.low_latency_combine(y, idx, weights, sent.handle).out

        step()  # compiles
        rank.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            steps = [step(), step(), step()]
        for factor in (1, 2, 4):
            x.copy_(to_input(rank, case.xs[me] * BF16(factor), "torch"))
            graph.replay()
            rank.synchronize()
            for sent, y, out in steps:
                results.append((*receive(sent, False), to_numpy(y, "bfloat16"), to_numpy(out, "bfloat16")))
    return results


@pytest.mark.gpu(count=2)
def test_in_a_cuda_graph() -> None:
    pytest.importorskip("torch")
    case = low_latency_case(21, fp8=False, world_size=2, max_tokens=50)
    results = spawn(captured, 2, "cuda", args=(case,))
    for i, factor in enumerate((1, 2, 4)):
        scaled = dataclasses.replace(case, xs=[x * BF16(factor) for x in case.xs])
        check_case(scaled, False, [r[3 * i : 3 * i + 3] for r in results])


def test_host_and_device_count_packets_alike() -> None:
    source = """
        #include <moe/low_latency/dispatch.cu>
        extern "C" __global__ void facts(int* out) {
            for (int k = 1; k <= 32; ++k) {
                out[2 * k - 2] = ep::low_latency::route_words(k);
                out[2 * k - 1] = ep::low_latency::weight_words(k);
            }
        }"""

    def main(rank: Rank) -> list[int]:
        out = np.zeros(64, np.int32)
        Kernel.from_source(source, "facts").launch(rank, 1, 1, out)
        rank.synchronize()
        return out.tolist()

    (got,) = spawn(main, 1, "emulator")
    assert got == [words for k in range(1, 33) for words in packets_per_token(k)]
