"""ep_lib.compat.deep_ep: DeepEP V1's calls, their results, and the calling sequences of those who make them."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import deep_ep_cases
from support.waiting import ENOUGH

import ep_lib
from ep_lib.compat import deep_ep
from ep_lib.errors import ArgumentError, BackendUnavailable, BufferClosedError, EpError, HandleError, NotSupportedError

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).parent / "programs" / "deep_ep_program.py"
_LIMIT_S = 3 * ENOUGH  # the first process that needs it compiles the emulator


@pytest.fixture(autouse=True)
def _few_blocks() -> Iterator[None]:
    """Of emulated kernels."""
    deep_ep.Buffer.set_num_sms(4)
    yield
    deep_ep.Buffer.set_num_sms(20)


def test_normal_mode_returns_what_deep_ep_returns() -> None:
    ep_lib.spawn(deep_ep_cases.normal_mode, ranks=4, backend="emulator")


def test_low_latency_mode_returns_what_deep_ep_returns() -> None:
    ep_lib.spawn(deep_ep_cases.low_latency_mode, ranks=4, backend="emulator")


def test_nodes_that_nics_connect_are_found_by_themselves() -> None:
    nodes = ep_lib.Fabric("rc", ranks_per_node=2)
    assert ep_lib.spawn(deep_ep_cases.several_nodes, ranks=4, backend="emulator", fabric=nodes) == [[192]] * 4


# DeepEP V1's parameters, in its order: callers pass some of them by position.
ASYNC = "previous_event async_finish allocate_on_comm_stream"
LAYOUT = "num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert"
SIZES = "num_max_dispatch_tokens_per_rank hidden"
SURFACE = {
    "__init__": "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank "
    "allow_nvlink_for_low_latency_mode allow_mnnvl explicitly_destroy enable_shrink comm",
    "destroy": "",
    "is_sm90_compiled": "",
    "set_num_sms": "new_num_sms",
    "capture": "",
    "get_low_latency_rdma_size_hint": f"{SIZES} num_ranks num_experts",
    "get_comm_stream": "",
    "get_local_buffer_tensor": "dtype size offset use_rdma_buffer",
    "get_dispatch_config": "num_ranks",
    "get_combine_config": "num_ranks",
    "get_dispatch_layout": f"topk_idx num_experts {ASYNC}",
    "dispatch": f"x handle {LAYOUT} topk_idx topk_weights expert_alignment num_worst_tokens config {ASYNC}",
    "combine": f"x handle topk_weights bias config {ASYNC}",
    "clean_low_latency_buffer": f"{SIZES} num_experts",
    "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
    "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats use_fp8 round_scale use_ue8m0 async_finish "
    "return_recv_hook",
    "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
    "combine_wait_recv_cost_stats",
    "low_latency_update_mask_buffer": "rank_to_mask mask",
    "low_latency_query_mask_buffer": "mask_status",
    "low_latency_clean_mask_buffer": "",
    "get_next_low_latency_combine_buffer": "handle",
}


@pytest.mark.parametrize("name", SURFACE)
def test_parameters_come_in_deep_eps_order(name: str) -> None:
    parameters = [word for word in inspect.signature(getattr(deep_ep.Buffer, name)).parameters if word != "self"]
    wanted = SURFACE[name].split()
    assert parameters[: len(wanted)] == wanted


def run_program(backend: str, folder: Path) -> None:
    """Three processes, in two groups."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), "3", str(folder / "store"), backend],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [out for out, _ in said] == ["done\n"] * 3, said


@pytest.mark.slow
def test_vllm_sglang_and_megatron_call_it_on_gloo_groups(tmp_path: Path) -> None:
    run_program("gloo", tmp_path)


@pytest.mark.gpu(count=3)
def test_vllm_sglang_and_megatron_call_it_on_nccl_groups(tmp_path: Path) -> None:
    run_program("nccl", tmp_path)


def test_a_rank_with_more_tokens_makes_all_meet_and_handles_stay_good() -> None:
    def main(rank: ep_lib.Rank) -> list[int]:
        buffer = deep_ep.Buffer(rank, explicitly_destroy=True)
        handles = []
        for tokens in (4, 300 if rank == 1 else 0, 5):
            x, idx, _ = deep_ep_cases.choices(rank.rank, tokens)
            came, *_, handle, _ = buffer.dispatch(x, topk_idx=idx, **deep_ep_cases.layout_of(buffer, idx))
            handles.append((came, handle, x))
        for came, handle, x in reversed(handles):
            out, none, _ = buffer.combine(came, handle)
            assert none is None and torch.equal(out, (x.float() * handle[4].sum(1, keepdim=True)).bfloat16())
        alive = len(buffer._members._engines)
        del handles, came, handle
        buffer.destroy()
        with pytest.raises(BufferClosedError, match="destroyed"):
            buffer.combine(out, None)
        return [alive, len(buffer._members._engines)]

    assert ep_lib.spawn(main, ranks=2, backend="emulator") == [[2, 0], [2, 0]]


def refused(call: Any, error: type[EpError], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_what_cannot_be_is_a_sentence_that_names_a_way_out() -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.Buffer(rank)
        x, idx, weights = deep_ep_cases.choices(0, 4)
        layout = deep_ep_cases.layout_of(buffer, idx)
        came, counts, low, event, _ = buffer.low_latency_dispatch(x, idx, 8, 8, use_fp8=False)
        handle = buffer.dispatch(x, topk_idx=idx, **layout)[4]
        assert handle is not None
        bad_scales = torch.ones(4, 3)
        fp8 = x.to(torch.float8_e4m3fn)
        refused(lambda: deep_ep.Buffer(None), ArgumentError, "comm=")
        refused(lambda: deep_ep.Buffer("world"), ArgumentError, "process group")
        refused(lambda: deep_ep.Buffer(rank, allow_nvlink_for_low_latency_mode=False), NotSupportedError, "over NVLink")
        refused(buffer.destroy, ArgumentError, "explicitly_destroy=True")
        refused(lambda: deep_ep.Buffer.set_num_sms(7), ArgumentError, "even")
        refused(lambda: deep_ep.Config(4, 9, 8), ArgumentError, "smaller")
        refused(event.current_stream_wait, ArgumentError, "async_finish=False")
        refused(lambda: buffer.dispatch(x, topk_idx=idx), ArgumentError, "num_tokens_per_expert")
        refused(lambda: buffer.dispatch(x, handle=handle, topk_idx=idx), ArgumentError, "the handle's")
        refused(lambda: buffer.dispatch((fp8, bad_scales), topk_idx=idx, **layout), NotSupportedError, "fewer columns")
        refused(lambda: buffer.combine(came[0], tuple(handle)), HandleError, "very object")
        refused(
            lambda: buffer.dispatch(x.repeat(50, 1), topk_idx=idx.repeat(50, 1), num_worst_tokens=2, **layout),
            ArgumentError, "reserve",
        )  # fmt: skip
        refused(lambda: buffer.low_latency_dispatch(x, idx, 8, 8, use_ue8m0=True), ArgumentError, "round_scale=True")
        refused(lambda: buffer.low_latency_dispatch(x, idx, 8, 8, None, counts), NotSupportedError, "profiler")
        refused(
            lambda: buffer.low_latency_dispatch(x, idx, 8, 8, async_finish=True, return_recv_hook=True),
            ArgumentError, "exclude",
        )  # fmt: skip
        refused(
            lambda: buffer.low_latency_combine(came, idx, weights, low, use_logfmt=True), NotSupportedError, "bfloat16"
        )
        refused(lambda: buffer.get_comm_stream(), NotSupportedError, "no GPU")
        buffer.reserve(500, x.shape[1], 8, idx.shape[1], x)
        wide = buffer.dispatch(x.repeat(50, 1), topk_idx=idx.repeat(50, 1), num_worst_tokens=200, **layout)
        assert len(wide[0]) == 200
        raw = deep_ep.Buffer(rank, 1000)
        view = raw.get_local_buffer_tensor(torch.int32, torch.Size([5, 6]), offset=2)
        view.fill_(3)
        assert int((raw.get_local_buffer_tensor(torch.int32) == 3).sum()) == 30
        refused(lambda: raw.get_local_buffer_tensor(torch.int32, torch.Size([300])), ArgumentError, "250 elements")

    ep_lib.spawn(main, ranks=1, backend="emulator")


def test_the_program_of_the_guide_runs() -> None:
    text = (ROOT / "docs" / "migrate-from-deepep.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/migrate-from-deepep.md", "exec"), {"__name__": "__main__"})


def test_the_name_deep_ep_is_this_module_where_one_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a call (deep_ep_program.py makes it), and by the distribution in extras/; never over another module."""
    names = ("deep_ep", "deep_ep.utils", "deep_ep.buffer")
    monkeypatch.setitem(sys.modules, "deep_ep", types.ModuleType("deep_ep"))
    refused(deep_ep.install_alias, BackendUnavailable, "call install_alias\\(\\) first")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(ROOT / "extras" / "deep_ep")
    refused(deep_ep.install_alias, BackendUnavailable, "replace=True")
    try:
        assert importlib.import_module("deep_ep") is deep_ep
        assert importlib.import_module("deep_ep.utils").EventOverlap is deep_ep.EventOverlap
        assert importlib.import_module("deep_ep.buffer").Buffer is deep_ep.Buffer
        deep_ep.install_alias()
    finally:
        for name in names:
            sys.modules.pop(name, None)
