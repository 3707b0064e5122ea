"""ep_lib.dispatch_combine, the standalone API: against the oracle, and each thing that its source lists as a limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.dispatch_combine_cases import Case, assert_received, assert_same, make_case, to_numpy, unpack
from support.mpi import mpiexec
from support.rank_runs import no_heap_is_left

import ep_lib
from ep_lib import Fabric, Kernel, Rank, cli, spawn
from ep_lib.commands import dispatch_combine as command
from ep_lib.dispatch_combine import Config, DispatchCombineContext, DispatchCombineHandle
from ep_lib.dispatch_combine import context as context_module
from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    EpError,
    HandleError,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankMismatchError,
)
from ep_lib.jit import nvrtc
from ep_lib.memory.symmetric import SymmetricHeap
from ep_lib.shared_memory import SHARED_MEMORY
from ep_lib.transports.emulated.heap import ByPairHeap

TWO_NODES = Fabric("rc", ranks_per_node=2)
SMALL = {"hidden_dim": 16, "max_tokens_per_rank": 6, "num_experts_per_rank": 2, "num_experts_per_token": 2}


def config_of(case: Case, rank: int = 0, **more: Any) -> Config:
    return Config(
        world_size=case.world_size,
        rank=rank,
        hidden_dim=case.hidden,
        max_tokens_per_rank=case.max_tokens,
        num_experts_per_rank=case.num_experts // case.world_size,
        num_experts_per_token=case.top_k,
        dtype=case.dtype,
        **more,
    )


def small(rank: Rank, **more: Any) -> Config:
    return Config(**{"world_size": rank.world_size, "rank": rank.rank, **SMALL, **more})


def batch(config: Config, seed: int = 0) -> tuple[Any, Any, Any]:
    return command._batch(config, seed, config.rank)


def run_case(rank: Rank, case: Case, more: dict[str, Any]) -> dict[str, Any]:
    """A batch whose experts change nothing, then the same again with experts of which each rank has its own."""
    arrays = [each[rank.rank] for each in (case.xs, case.topk_idx, case.topk_weights)]
    padded = [np.concatenate([array, array[:1], array[:1]])[: len(array) + 2].copy() for array in arrays]
    with DispatchCombineContext(config_of(case, rank.rank, **more), rank) as context:
        first = DispatchCombineHandle(context)
        first.prepare_inference(*(rank.to_device(array) for array in padded), num_tokens=len(arrays[0]))
        first.launch_dispatch()
        first.launch_combine()
        second = DispatchCombineHandle(context)
        second.prepare_inference(*map(rank.to_device, arrays))
        second.launch_dispatch()
        scaled = (second.received.x.astype(np.float32) * (rank.rank + 1)).astype(second.received.x.dtype)
        second.launch_combine(scaled)
        return {
            "received": unpack(first.received, case.dtype),
            "same": to_numpy(first.get_output_buffer(), case.dtype),
            "scaled": to_numpy(second.get_output_buffer(), case.dtype),
            "ways": context.ways,
            "rows": first.rows_received,
            "direct": context.buffer.config.allow_nvlink_for_normal_mode,
        }


def check_case(case: Case, results: list[dict[str, Any]]) -> None:
    arrived = case.expected_dispatch()
    same = case.expected_combine([each.x for each in arrived], weighted=True)
    ys = [(each.x.astype(np.float32) * (r + 1)).astype(each.x.dtype) for r, each in enumerate(arrived)]
    scaled = case.expected_combine(ys, weighted=False)
    for rank, result in enumerate(results):
        assert_received(result["received"], arrived[rank], f"rank {rank}, dispatch")
        assert_same(result["same"], same[rank], f"rank {rank}, combine")
        assert_same(result["scaled"], scaled[rank], f"rank {rank}, combine of the experts' outputs")
        assert sum(result["rows"].values()) == len(arrived[rank].x)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_batches_equal_the_oracle_by_every_way(seed: int) -> None:
    case = make_case(500 + seed, world_size=4)
    kind = ("rc", "srd")[seed % 2]
    for fabric, more, direct in (
        (None, {}, True),
        (None, {"window_bytes": 1 << 16}, False),
        (Fabric(kind, ranks_per_node=2), {"gpu_per_node": 2}, False),
    ):
        args = (case, more)
        results = spawn(run_case, 4, "emulator", seed=seed, fabric=fabric, transport="by_pair", args=args)
        check_case(case, results)
        assert all(result["direct"] == direct for result in results)


@pytest.mark.gpu(count=4)
def test_batches_equal_the_oracle_on_gpus() -> None:
    for seed in range(3):
        case = make_case(600 + seed, world_size=4, dtype="float32")
        for more in ({}, {"window_bytes": 1 << 16}, {"gpu_per_node": 2}):
            check_case(case, spawn(run_case, 4, "cuda", args=(case, more)))


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")
def test_what_finds_the_ways_compiles_for_gpus() -> None:
    Kernel.from_source(context_module._LOOK, "find_ways").compile("sm_90")


# ---- what the source lists as limits, one by one ---------------------------------------------------------------------
def test_flow_control_bounds_what_is_under_way() -> None:
    """80 tokens through rings of one token each: right, in memory that does not grow with the tokens."""
    case = make_case(7, world_size=2, dtype="bfloat16", max_tokens=80)
    least = config_of(case, window_bytes=1)
    with pytest.raises(ArgumentError, match=r"window_bytes is 1; 2 channels .* take (\d+) bytes") as caught:
        least.buffer_arguments("emulator", direct=False)
    window = int(str(caught.value).split(" bytes: pass")[0].split()[-1])
    timeline = ep_lib.simulate(run_case, 2, fabric="rc", args=(case, {"window_bytes": window, "gpu_per_node": 1}))
    check_case(case, timeline.results)
    in_use = [sample.value for sample in timeline.samples if sample.name == "slots in use"]
    assert in_use and max(in_use) == 1, "of two rings with one slot each"
    sizes = [
        ep_lib.Buffer.symmetric_bytes(
            2,
            **replace(least, max_tokens_per_rank=tokens, window_bytes=window).buffer_arguments(
                "emulator", direct=False
            ),
        )
        for tokens in (80, 8000)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.extended
def test_memory_is_registered_once_whatever_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    registered, allocated = [], []
    make, allocate = ByPairHeap.__init__, SymmetricHeap.allocate

    def counting_make(self: Any, setup: Any) -> None:
        registered.append(setup.rank)
        make(self, setup)

    def counting_allocate(self: Any, nbytes: int, *, hint: str) -> int:
        allocated.append(nbytes)
        return allocate(self, nbytes, hint=hint)

    monkeypatch.setattr(ByPairHeap, "__init__", counting_make)
    monkeypatch.setattr(SymmetricHeap, "allocate", counting_allocate)

    def main(rank: Rank) -> None:
        config = small(rank)
        for _ in range(2):
            with DispatchCombineContext(config, rank) as context:
                for seed in range(3):
                    handle = DispatchCombineHandle(context)
                    handle.prepare_inference(*map(rank.to_device, batch(config, seed)))
                    handle.launch_dispatch()
                    handle.launch_combine()

    spawn(main, 2, "emulator", transport="by_pair")
    assert sorted(registered) == [0, 1], "a rank's symmetric heap is registered when the world begins"
    assert len(allocated) == 2 * 2, "and a context takes one part of it"


@pytest.mark.extended
def test_each_pair_of_ranks_takes_its_own_way() -> None:
    """Between nodes a store would be a fault; inside them nothing would arrive by the NIC, whose links are broken."""
    inside = tuple((a, b) for a in range(4) for b in range(4) if a // 2 == b // 2)
    case = make_case(11, world_size=4)
    fabric = replace(TWO_NODES, broken_links=inside)
    results = spawn(run_case, 4, "emulator", fabric=fabric, transport="by_pair", args=(case, {"gpu_per_node": 2}))
    check_case(case, results)
    assert [result["ways"] for result in results] == [
        ("own", "p2p", "network", "network"),
        ("p2p", "own", "network", "network"),
        ("network", "network", "own", "p2p"),
        ("network", "network", "p2p", "own"),
    ]
    for rank, (result, arrived) in enumerate(zip(results, case.expected_dispatch(), strict=True)):
        sources = arrived.src_rank.tolist()
        assert result["rows"] == {way: sum(result["ways"][s] == way for s in sources) for way in context_module.WAYS}, (
            rank
        )


def test_several_gpus_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Emulated ones: the threads of spawn, each with a context of its own; here the program's --ranks."""
    assert cli.main(["dispatch-combine", "32", "8", "2", "2", "--ranks", "4", "--gpu-per-node=2", "--rounds=1"]) == 0
    said = capsys.readouterr().out
    assert "ranks: 4 (emulator), nodes: 2, way: rings with credits" in said
    assert "rank's rows and output equal the NumPy oracle's" in said and "dispatch" in said and "combine" in said


def test_after_an_error_a_context_begins_anew() -> None:
    """A link stands still for longer than ranks wait; later it works, and so do the ranks."""

    def main(rank: Rank) -> tuple[str, Any]:
        config = small(rank, gpu_per_node=1)
        context = DispatchCombineContext(config, rank)
        error = ""
        for _ in range(9):
            context.initialize()
            handle = DispatchCombineHandle(context)
            handle.prepare_inference(*map(rank.to_device, batch(config)))
            try:
                handle.launch_dispatch()
                handle.launch_combine()
                break
            except PeerTimeout as caught:
                error = str(caught)
                with pytest.raises(BufferClosedError):
                    handle.launch_dispatch()
                context.finalize()
        output = rank.to_host(handle.get_output_buffer())
        context.finalize()
        return error, output

    # Where nothing happens, time grows by ever larger steps: a limit of 30 s is seen before twice that.
    stalls = Fabric("rc", stalled_links={(0, 1, 1): 70})
    (first, got), (second, _) = spawn(main, 2, "emulator", fabric=stalls, transport="by_pair")
    assert "rank 0" in second and "rank 1" in first
    assert_same(got, spawn(main, 2, "emulator", fabric="rc", transport="by_pair")[0][1], "rank 0's output")


# ---- what is wrong, and what is said ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"world_size": 0}, "world_size is 0; it must be from 1 to"),
        ({"rank": 4}, "rank is 4; it must be from 0 to 3"),
        ({"rank": -1}, "rank is -1; it must be from 0 to 3"),
        ({"hidden_dim": 12}, "hidden_dim is 12: a token of 24 bytes .* for example 16"),
        ({"hidden_dim": 4096.0}, "hidden_dim is 4096.0; it must be a whole number"),
        ({"max_tokens_per_rank": 0}, "max_tokens_per_rank is 0; it must be at least 1"),
        ({"num_experts_per_rank": 0}, "num_experts_per_rank is 0; it must be from 1 to"),
        ({"num_experts_per_token": 9}, "num_experts_per_token is 9, and 4 ranks with 2 experts each have 8: lower it"),
        ({"gpu_per_node": 3}, "world_size is 4 and gpu_per_node 3: the last node would not be full; take a multiple"),
        ({"gpu_per_node": "8"}, "gpu_per_node is '8'; it must be a whole number"),
        ({"dtype": "float16"}, "dtype is 'float16'; a Buffer carries 'bfloat16' or 'float32'"),
        ({"num_sms": 3}, "num_sms is 3; .* take an even number, for example 4"),
        ({"window_bytes": 0}, "window_bytes is 0; it must be at least 1"),
    ],
)
def test_a_config_is_refused_with_value_and_remedy(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Config(**{"world_size": 4, "rank": 0, **SMALL, **wrong})


def test_a_config_takes_every_kind_of_dtype() -> None:
    kinds = ("float32", np.float32, np.dtype("float32"))
    assert {Config(world_size=1, rank=0, dtype=kind).dtype for kind in kinds} == {np.dtype("float32")}


def every_rank_raises(error: type[EpError], said: str, make: Callable[[Rank], Config]) -> None:
    def main(rank: Rank) -> None:
        with pytest.raises(error, match=said):
            DispatchCombineContext(make(rank), rank).initialize()

    spawn(main, 2, "emulator")


def test_unequal_configs_are_refused_on_every_rank() -> None:
    said = "have different Configs: hidden_dim is 16 on rank 0 but 32 on rank 1; pass the same everywhere"
    every_rank_raises(RankMismatchError, said, lambda rank: small(rank, hidden_dim=16 << rank.rank))
    said = "Config's world_size is 4, and there are 2 ranks: start 4, or make the Config for 2"
    every_rank_raises(ArgumentError, said, lambda rank: small(rank, world_size=4))
    said = "rank 1 has a Config for rank 0; each rank's Config names its own number"
    every_rank_raises(ArgumentError, said, lambda rank: replace(small(rank), rank=0))


def test_each_host_has_memory_for_its_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks on two hosts, each with memory for three."""
    monkeypatch.setattr(context_module, "_available_bytes", lambda: 3000)
    names = ["one", "one", "two", "two"]
    monkeypatch.setattr(context_module, "host_name", names.pop)
    spawn(lambda rank: context_module._require_memory(rank, 1000), 4, "emulator")
    names += ["one", "two", "two", "two"]
    with pytest.raises(OutOfSymmetricMemory, match=r"3 ranks need 1001 bytes .*, 3003 in all, and their host two has"):
        spawn(lambda rank: context_module._require_memory(rank, 1001), 4, "emulator")


def test_more_ranks_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "_available_bytes", lambda: 1000)
    said = r"2 ranks need \d+ bytes of symmetric memory each, .* has 1000 available: start fewer ranks there, or lower"
    every_rank_raises(OutOfSymmetricMemory, said, small)


def test_the_order_of_calls_and_refused_batches() -> None:
    def main(rank: Rank) -> None:
        config = small(rank)
        context = DispatchCombineContext(config, rank)
        for name in ("rank", "ways", "buffer"):
            with pytest.raises(BufferClosedError, match="not initialized"):
                getattr(context, name)
        with pytest.raises(BufferClosedError, match="call its initialize"):
            DispatchCombineHandle(context)
        context.initialize()
        context.initialize()
        handle = DispatchCombineHandle(context)
        for call, said in (
            (handle.launch_dispatch, "no batch to dispatch: call prepare_inference"),
            (handle.launch_combine, "nothing was received yet: call launch_dispatch"),
            (handle.get_output_buffer, "no output yet: call launch_combine"),
        ):
            with pytest.raises(HandleError, match=said):
                call()
        tokens, experts, weights = good = batch(config)
        for arrays, number, said in (
            ((tokens[:, :8], experts, weights), None, r"tokens has shape \(6, 8\); it must be \[num_tokens, 16\]"),
            ((tokens, experts[:, 0], weights), None, r"expert_ids has shape \(6,\)"),
            ((tokens, experts, weights), 7, "num_tokens is 7; it must be from 0 to 6"),
            ((tokens, experts[:3], weights), None, "expert_ids has 3 rows, fewer than num_tokens=6: pass more"),
            ((tokens.astype(np.float32), experts, weights), None, "tokens has dtype float32; it must be bfloat16"),
            (
                (tokens, experts.astype(np.uint8), weights),
                None,
                "expert_ids has dtype uint8; it must be int32 or int64",
            ),
            ((tokens, experts, weights.astype(float)), None, "weights has dtype float64; it must be float32"),
            (("tokens", experts, weights), None, "tokens is 'tokens' .*; it must be a NumPy"),
        ):
            with pytest.raises(ArgumentError, match=said):
                handle.prepare_inference(*arrays, num_tokens=number)
        if rank.rank == 0:  # the other waits in its dispatch until this rank comes with a better batch
            handle.prepare_inference(tokens, experts + 100, weights)
            with pytest.raises(ArgumentError, match=r"topk_idx\[0, 0\] is \d+; expert ids go from 0 to 3"):
                handle.launch_dispatch()
        handle.prepare_inference(*good)
        handle.launch_dispatch()
        handle.launch_combine()
        assert handle.get_output_buffer().shape == (6, 16)
        context.finalize()
        context.finalize()
        with pytest.raises(BufferClosedError):
            handle.launch_dispatch()

    spawn(main, 2, "emulator")


def test_without_mpiexec_or_mpi4py_the_program_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_program", lambda name: None)
    assert cli.main(["dispatch-combine", "--processes", "2"]) == 1
    said = capsys.readouterr().err
    assert "--processes 2 needs mpiexec" in said and "pip install mpich mpi4py" in " ".join(said.split())
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert cli.main(["dispatch-combine", "64", "8", "2", "2"]) == 1
    assert "pip install mpi4py" in " ".join(capsys.readouterr().err.split())
    assert cli.main(["dispatch-combine", "--ranks", "2"]) == 1
    assert "mpi has started this one: leave them out" in " ".join(capsys.readouterr().err.split())


def test_the_example_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_BACKEND", "emulator")
    text = (ROOT / "docs" / "dispatch_combine.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    exec(compile(program, "docs/dispatch_combine.md", "exec"), {})


# ---- as processes ----------------------------------------------------------------------------------------------------
PROGRAM = [sys.executable, "-m", "ep_lib.dispatch_combine"]
ENOUGH = 120.0  # seconds after which a test gives up waiting
KILLED = """
import os, signal
from ep_lib.runtime import launcher
from ep_lib.commands.dispatch_combine import _batch
from ep_lib.dispatch_combine import Config, DispatchCombineContext, DispatchCombineHandle
config = Config(world_size=3, rank=launcher.detect().rank, hidden_dim=64, max_tokens_per_rank=8)
with DispatchCombineContext(config) as context:
    handle = DispatchCombineHandle(context)
    handle.prepare_inference(*_batch(config, 0, config.rank))
    handle.launch_dispatch()
    if config.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    handle.launch_combine()
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**kept, **root, "EP_LIB_BACKEND": "emulator", **more}


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENOUGH, check=False)
    assert no_heap_is_left()
    return done


@pytest.mark.extended
@pytest.mark.slow
def test_the_program_under_mpiexec() -> None:
    mpiexec(4)
    done = launch(*PROGRAM, "64", "8", "2", "2", "--gpu-per-node=2", "--rounds=1", "--processes=4")
    assert done.returncode == 0, done.stderr
    assert "ranks: 4 (emulator), nodes: 2" in done.stdout and done.stdout.count("bit for bit") == 1


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["32"], "hidden_dim is 64 on rank 0 but 32 on rank 1"),
        (["65"], "rank 1: hidden_dim is 65: a token of 130 bytes"),
        (["many"], "rank 1: hidden_dim is 'many'; it must be a whole number"),
        (["64", "--window=10"], "rank 1: window_bytes is 10; 2 channels"),
    ],
)
def test_ranks_with_unequal_configs_end_at_once(other: list[str], said: str) -> None:
    done = launch(*mpiexec(1), *PROGRAM[1:], "64", ":", "-n", "1", *PROGRAM, *other)
    words = " ".join(done.stderr.split())
    assert done.returncode != 0 and said in words and "Traceback" not in words, done.stderr
    assert words.count("ep-lib: ") == 1, "rank 0 says it for all"


@pytest.mark.extended
@pytest.mark.slow
def test_a_killed_rank_is_named_by_the_others() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": f"{os.getpid()}{time.time_ns()}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED],
            env=environment(**step, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [process.communicate(timeout=ENOUGH)[1] for process in processes]
    assert processes[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        assert processes[rank].returncode == 1, said[rank]
        # who waits in a kernel, or between two
        assert re.search("RankFailed: rank 1('s process| was a process that) has ended", said[rank]), said[rank]
    assert no_heap_is_left()


@pytest.mark.extended
@pytest.mark.slow
def test_a_killed_rank_under_mpiexec_leaves_nothing() -> None:
    before = set(SHARED_MEMORY.iterdir())
    assert launch(*mpiexec(3), "-c", KILLED).returncode != 0
    assert not {path.name for path in set(SHARED_MEMORY.iterdir()) - before if "mpich" in path.name}
