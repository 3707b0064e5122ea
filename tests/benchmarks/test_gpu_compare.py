"""gpu_compare.py and gpu_vary.py without a GPU: what is asked of each library, how rows are merged, what is kept."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_compare
import gpu_libraries
import gpu_vary
import pytest
from gpu_inputs import Shape
from gpu_libraries import Case, Limits
from support import ROOT

import ep_lib

torch = pytest.importorskip("torch")

SHAPE = Shape(ranks=1, tokens=6, hidden=256, experts=8, top_k=2)
LIMITS = Limits(tokens=8, hidden=256, num_sms=24)


class FakeV1:
    """DeepEP V1's calls for one rank, on the CPU; ``spoil`` changes what a dispatch brings."""

    spoil = 0

    def __init__(self, group: Any, num_nvl_bytes: int, num_rdma_bytes: int, **options: Any) -> None:
        assert options["low_latency_mode"] and options["num_qps_per_rank"] == SHAPE.experts
        self.chunks: list[int] = []

    @staticmethod
    def get_low_latency_rdma_size_hint(tokens: int, hidden: int, ranks: int, experts: int) -> int:
        return tokens * hidden * ranks * experts

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int) -> tuple[Any, ...]:
        in_rank = torch.ones(len(topk_idx), 1, dtype=torch.bool)
        return in_rank.sum(0), None, topk_idx.flatten().bincount(minlength=num_experts), in_rank, None

    def dispatch(self, x: Any, handle: Any = None, config: Any = None, **given: Any) -> tuple[Any, ...]:
        assert (handle is None) == bool(given), "a cached dispatch gets rows and the handle only"
        self.chunks.append(config)
        parts = [part.clone() for part in (x if isinstance(x, tuple) else (x,))]
        parts[0].view(torch.uint8)[0, 0] += self.spoil
        return tuple(parts) if isinstance(x, tuple) else parts[0], None, None, [], "handle", None

    def combine(self, x: Any, handle: Any, config: Any) -> tuple[Any, ...]:
        return x.clone(), None, None

    def low_latency_dispatch(self, x: Any, idx: Any, most: int, experts: int, use_fp8: bool = True) -> tuple[Any, ...]:
        return x.clone(), idx.flatten().bincount(minlength=experts), "handle", None, None

    def low_latency_combine(self, x: Any, idx: Any, weights: Any, handle: Any) -> tuple[Any, ...]:
        return (x.float() * weights.sum(1, keepdim=True)).bfloat16(), None, None

    def destroy(self) -> None:
        self.chunks.clear()


class FakeV2:
    """DeepEP V2's calls for one rank: rows come in the reverse order, as its metadata say."""

    spoil = 0

    def __init__(self, group: Any, num_max_tokens_per_rank: int, **sizes: int) -> None:
        assert num_max_tokens_per_rank == LIMITS.tokens

    def dispatch(self, x: Any, num_sms: int, handle: Any = None, **given: Any) -> tuple[Any, ...]:
        parts = [part.flip(0) for part in (x if isinstance(x, tuple) else (x,))]
        order = torch.arange(len(parts[0])).flip(0)
        parts[0].view(torch.uint8)[0, 0] += self.spoil
        made = SimpleNamespace(recv_src_metadata=order[:, None].int())
        return tuple(parts) if isinstance(x, tuple) else parts[0], None, None, handle or made, None

    def combine(self, x: Any, handle: Any, num_sms: int) -> tuple[Any, ...]:
        return x.flip(0), None, None

    def destroy(self) -> None:
        pass


def findings(make: type[gpu_libraries.Library], module: Any) -> dict[tuple[str, str, str], bool]:
    """Whether each operation of a library is right, by what it is, note and dtype."""

    def main(rank: ep_lib.Rank) -> dict[tuple[str, str, str], bool]:
        library = make(rank, LIMITS, SHAPE, module, None)  # type: ignore[call-arg]
        case = Case(rank, SHAPE, "random")
        found = {}
        for dtype in ("fp8", "bf16"):
            for operation in library.operations(case, dtype):
                found[operation.what, operation.note, dtype] = operation.right(operation.turns[0]())
        for operation in library.low_latency(case):
            found[operation.what, operation.note, ""] = operation.right(operation.turns[0]())
        library.close()
        return found

    return dict(ep_lib.spawn(main, 1, "emulator")[0])


NORMAL = {("dispatch", note, dtype) for note in ("cached handle", "counted") for dtype in ("fp8", "bf16")}


@pytest.mark.parametrize("spoil", [0, 1])
def test_deep_ep_v1_is_asked_and_checked(monkeypatch: pytest.MonkeyPatch, spoil: int) -> None:
    monkeypatch.setattr(FakeV1, "spoil", spoil)
    module = SimpleNamespace(Buffer=FakeV1, Config=lambda sms, chunk, ring: (sms, chunk, ring))
    found = findings(gpu_libraries.DeepEpV1, module)
    decode = {("low-latency dispatch", "called", ""), ("low-latency combine", "called", "")}
    assert set(found) == NORMAL | {("combine", "", "bf16")} | decode
    assert {name for name, right in found.items() if not right} == (
        NORMAL | {("combine", "", "bf16")} if spoil else set()
    )


@pytest.mark.parametrize("spoil", [0, 1])
def test_deep_ep_v2_is_asked_and_checked(monkeypatch: pytest.MonkeyPatch, spoil: int) -> None:
    monkeypatch.setattr(FakeV2, "spoil", spoil)
    found = findings(gpu_libraries.DeepEpV2, SimpleNamespace(ElasticBuffer=FakeV2))
    assert set(found) == NORMAL | {("combine", "", "bf16")}
    assert set(found.values()) == {not spoil}


def test_a_row_that_came_twice_or_not_is_wrong() -> None:
    def main(rank: ep_lib.Rank) -> list[bool]:
        case = Case(rank, SHAPE, "random")
        (x, scales), (source, token) = case.sets("fp8")[0], case.in_order()
        twice = token.clone()
        twice[0] = twice[1]
        return [
            case.arrived((x, scales), source, token),
            case.arrived((x[twice], scales[twice]), source, twice),
            case.arrived((x, scales), source, twice),
            case.arrived((x, 2 * scales), source, token),
            case.arrived((x[:0], scales[:0]), source[:0], token[:0]),
        ]

    assert ep_lib.spawn(main, 1, "emulator") == [[True, False, False, False, False]]


def test_figures_are_those_of_the_slowest_rank() -> None:
    name = {"group": "compare", "by": "x", "what": "dispatch", "late": 0, "divide": 10}
    one = {**name, "samples": [float(n) for n in range(101)], "queued_samples": [10.0, 30.0, 20.0]}
    two = {**name, "samples": [50.0] * 101, "queued_samples": [5.0, 5.0, 25.0]}
    row = gpu_compare.merge_clocks([[{**one, "host_samples": [1.0] * 3}], [{**two, "host_samples": [2.0] * 3}]])[0]
    assert (row["us"], row["us_p99"], row["queued_us"], row["host_us"]) == (5.0, 9.9, 2.5, 0.2)


def test_what_was_done_before_a_crash_is_kept(tmp_path: Path) -> None:
    row = {"group": "compare", "by": "x", "what": "dispatch", "late": 0, "samples": [1.0]}
    row |= {"queued_samples": [1.0], "host_samples": [1.0]}
    line = json.dumps({"rows": [row], "wrong": ["rank 0: x"]}) + "\n"
    (tmp_path / "rank0.jsonl").write_text(line * 2)
    (tmp_path / "rank1.jsonl").write_text(line)
    found = gpu_compare.read_part(tmp_path, 2)
    assert len(found["rows"]) == 1 and len(found["wrong"]) == 2 and found["machine"] == {}
    assert gpu_compare.read_part(tmp_path, 3)["rows"] == [], "rank 2 did not finish one"


def test_each_library_has_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/here")
    options = argparse.Namespace(deep_ep_v1=tmp_path / "v1", deep_ep_v2=tmp_path / "v2", nccl=tmp_path / "nccl")
    assert "PYTHONPATH" not in gpu_compare.environment("nccl", options)
    assert gpu_compare.environment("deep_ep_v1", options)["PYTHONPATH"] == f"{tmp_path / 'v1'}:/here"
    v2 = gpu_compare.environment("deep_ep_v2", options)
    assert v2["LD_PRELOAD"] == f"{tmp_path}/nccl/lib/libnccl.so.2" and v2["EP_DISABLE_GIN"] == "1"
    (tmp_path / "v1").mkdir()
    assert gpu_compare.built_from(tmp_path / "v1") == gpu_compare.built_from(None) == "unknown"
    (tmp_path / "v1" / "commit").write_text("567632d\n")
    assert gpu_compare.built_from(tmp_path / "v1") == "567632d"


@pytest.mark.extended
@pytest.mark.slow
def test_the_script_runs_on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "backend": "emulator",
        "libraries": "ep_lib,ep_lib_areas,ep_lib_shared,deep_ep_v1",
        "tokens": 4,
        "hidden": 256,
        "experts": 8,
    }
    settings |= {
        "top-k": 2,
        "repeats": 2,
        "calls": 1,
        "sms": 4,
        "tokens-skewed": 4,
        "routings": "incast",
        "dtypes": "bf16",
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    monkeypatch.setattr(
        sys, "argv", [str(ROOT / "benchmarks/gpu_compare.py"), *options]
    )  # also of the processes for each library
    *_, report = gpu_compare.reports(gpu_compare.arguments(), gpu_compare.MORE)
    assert report["wrong"] == [] and report["not_measured"] == {"DeepEP V1": "no --deep-ep-v1"}
    keys = ("by", "what", "note", "outputs", "routing")
    rows = [tuple(row.get(key) for key in keys) for row in report["rows"]]
    assert len(set(rows)) == len(rows) == 33
    assert ("ep_lib", "combine", "by expert", "owned", "random") in rows
    assert ("ep_lib", "dispatch", "counted", "owned", "incast") in rows
    assert ("ep_lib, 3 areas", "dispatch", "cached handle", "owned", "incast") in rows
    assert ("ep_lib", "low-latency combine", "called", "owned", "random") in rows


def test_the_quickest_of_several_turns_counts() -> None:
    rows = [{"by": by, "what": "step", "us": us} for by, us in (("NCCL", 3.0), ("ep_lib", 2.0), ("NCCL", 1.0))]
    assert gpu_compare.quickest(rows) == [rows[2], rows[1]]


# ---- gpu_vary.py: calls that differ


class OneRankNccl(gpu_libraries.Nccl):
    """NCCL's part with gloo, for one rank on the CPU."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:3])
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def close(self) -> None:
        torch.distributed.destroy_process_group()


class Spoiled(OneRankNccl):
    """One that takes each row for the one before it when it comes again."""

    def again(self, x: Any, came: Any) -> Any:
        return super().again(x.roll(1, 0), came) if isinstance(x, torch.Tensor) else super().again(x, came)


class Reuses(gpu_libraries.EpLib):
    """One that overwrites rows that its caller still holds."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:3])

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        recv = self._buffer.dispatch(x, idx, weights, copy=False)
        return recv.x, recv


V1 = SimpleNamespace(Buffer=FakeV1, Config=lambda sms, chunk, ring: (sms, chunk, ring))
V2 = SimpleNamespace(ElasticBuffer=FakeV2)


@pytest.mark.parametrize(
    "make, module, spoil, wrong",
    [
        (gpu_libraries.DeepEpV1, V1, 0, set()),
        (gpu_libraries.DeepEpV1, V1, 1, set(gpu_vary.KINDS)),
        (gpu_libraries.DeepEpV2, V2, 0, set()),
        (gpu_libraries.DeepEpV2, V2, 1, set(gpu_vary.KINDS)),
        (OneRankNccl, None, 0, set()),
        (Spoiled, None, 0, {"step", "layers"}),
        (Reuses, None, 0, {"step", "layers"}),
    ],
)
def test_calls_that_differ_are_checked(
    monkeypatch: pytest.MonkeyPatch, make: Any, module: Any, spoil: int, wrong: set[str]
) -> None:
    for fake in (FakeV1, FakeV2):
        monkeypatch.setattr(fake, "spoil", spoil)

    def main(rank: ep_lib.Rank) -> set[tuple[str, str]]:
        library = make(rank, LIMITS, SHAPE, module, None)
        draws = gpu_vary.Draws(rank, SHAPE, "random", gpu_vary.LAYERS * gpu_vary.CHECKED)
        found = set()
        for what, kind in gpu_vary.KINDS.items():
            library.prepare(draws.first, kind.dtype)
            for change in gpu_vary.CHANGES:
                if not gpu_vary.checked(library, draws, kind, change):
                    found.add((what, change))
        library.close()
        return found

    bytes_needed = ep_lib.Buffer.symmetric_bytes(1, **gpu_libraries.EpLib.arguments(SHAPE, LIMITS, 256)) + (4 << 20)
    (found,) = ep_lib.spawn(main, 1, "emulator", heap_bytes=bytes_needed)
    assert found == {(what, change) for what in wrong for change in gpu_vary.CHANGES}


def test_each_call_is_drawn_anew() -> None:
    def main(rank: ep_lib.Rank) -> list[list[gpu_vary.Given]]:
        draws = gpu_vary.Draws(rank, SHAPE, "random", 12)
        return [[draws.given(number, change) for number in range(12)] for change in gpu_vary.CHANGES]

    one, routing, tokens = ep_lib.spawn(main, 1, "emulator")[0]
    assert all(torch.equal(given.idx, one[0].idx) for given in one)
    assert len({given.idx.numpy().tobytes() for given in routing}) == 12
    assert {len(given.idx) for given in routing} == {6} and {len(given.idx) for given in tokens} == {3, 4, 5, 6}
    for given in tokens:
        x, scales = given.rows["fp8"]
        parts = [given.idx, given.weights, x, scales, given.rows["bf16"], given.gradient]
        assert len({len(part) for part in parts}) == 1 and all(part.is_contiguous() for part in parts)


@pytest.mark.slow
def test_a_library_that_fails_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here because a Buffer of no tokens cannot be made; a library without its folder is left out, and said so."""
    given = ["--backend=emulator", "--libraries=ep_lib,deep_ep_v1", "--tokens=0", "--kinds=counted"]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks/gpu_vary.py"), *given])
    assert gpu_vary.run(gpu_vary.arguments(), gpu_vary.varied, gpu_vary.shown, ["kinds"]) == 1
    out = capsys.readouterr().out
    assert "WRONG ep_lib: exit status 1; 0 rows were done" in out and "not measured: DeepEP V1: no --deep" in out


@pytest.mark.slow
def test_calls_that_differ_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"backend": "emulator", "tokens": 4, "hidden": 256, "experts": 8, "top-k": 2, "calls": 1, "sms": 2}
    settings |= {"routings": "random,incast", "kinds": "counted,step", "library": "ep_lib", "part": tmp_path}
    monkeypatch.setattr(sys, "argv", ["gpu_vary.py", *(f"--{name}={value}" for name, value in settings.items())])
    assert gpu_vary.run(gpu_vary.arguments(), gpu_vary.varied, gpu_vary.shown, ["kinds"]) == 0
    report = gpu_compare.read_part(tmp_path, 2)
    names = [tuple(row[key] for key in ("by", "what", "routing", "note")) for row in report["rows"]]
    assert len(set(names)) == len(names) == 12 and report["wrong"] == []
    assert ("ep_lib", "step", "incast", "routing and tokens") in names
    text = gpu_vary.shown({**report, "not_measured": {"DeepEP V1": "no --deep-ep-v1"}})
    assert "step 4 incast, ep_lib " in text and "not measured: DeepEP V1: no --deep-ep-v1" in text


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for options, says in (
        (["--libraries", "nvl"], "'nvl' is not one of ep_lib, ep_lib_areas"),
        (["--routings", "zip"], "'zip' is not one of random"),
        (["--ranks", "1"], "2 or more"),
        (["--deep-ep-v2", "/x"], "--nccl as well"),
    ):
        monkeypatch.setattr(sys, "argv", ["gpu_compare.py", *options])
        with pytest.raises(SystemExit, match="2"):
            gpu_compare.arguments()
        assert says in capsys.readouterr().err
