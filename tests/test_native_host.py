"""The native code of a call: it takes what is as usual, and leaves everything else to Python, without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ep_lib
from ep_lib.backends.cuda import CudaBackend
from ep_lib.cuda import native_host, tensors
from ep_lib.cuda.module import LoadedKernel
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import marshal
from ep_lib.jit.signature import Param
from ep_lib.memory import arrays
from ep_lib.memory.arrays import describe
from ep_lib.moe.agreement import FORM_SHIFT, WITH_WEIGHTS, Tag
from ep_lib.moe.formats import CASTS, FP8_FLOAT32

torch = pytest.importorskip("torch")

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_PARAMS = (
    Param("struct", 20, 4),
    Param("pointer", 8, 8, element="float", element_size=4),
    Param("pointer", 8, 8, is_const=True),
    Param("int", 4, 4),
)
_OFFSETS = (0, 32, 48, 64)


class FakeDriver:
    """cuLaunchKernel and cuCtxGetCurrent of no GPU; remembers what was launched."""

    def __init__(self) -> None:
        self.status, self.context = 0, 77
        self.seen: list[tuple[Any, ...]] = []
        self.functions = _LAUNCH(self._launch), _CONTEXT(self._get_context)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self.functions]
        self.launches = native_host.Launches(addresses[0], addresses[1], "cpu")

    def _launch(self, function: int, *rest: int) -> int:
        *shape, stream, params, _ = rest
        places = (ctypes.c_void_p * len(_PARAMS)).from_address(params)
        sizes = [param.size for param in _PARAMS]
        args = [ctypes.string_at(place, size) for place, size in zip(places, sizes, strict=True)]
        self.seen.append((function, tuple(shape), stream, args))
        return self.status

    def _get_context(self, out: Any) -> int:
        out[0] = self.context
        return 0


@pytest.fixture(scope="module")
def native() -> Any:
    module = native_host.load()
    if module is None:
        pytest.skip("needs a C++ compiler and Python's headers")
    return module


@pytest.fixture
def looking(native: Any) -> Any:
    """describe looks natively, and does not any more afterwards."""
    before = arrays._look
    assert native_host.look_at_tensors() or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    arrays.look_natively(native.describe)
    yield native
    arrays._look = before


def _prepare(driver: FakeDriver) -> Any:
    loaded = LoadedKernel("k", 1234, _PARAMS, 1024, 0, 32, None, False, None, b"")
    assert loaded.offsets == (_OFFSETS, 68)
    return driver.launches.prepare(loaded, (5, 1, 1), (64, 1, 1), 48)


def test_a_launch_packs_its_arguments(looking: Any) -> None:
    driver = FakeDriver()
    launch = _prepare(driver)
    x, y = torch.zeros(4, 4), np.zeros(3, np.int64)
    args = (bytes(range(20)), x, describe(y), -3)
    assert launch.run(9, args, ()) == -1, "whether float32 fits is not known yet"
    launch.learn(1, np.dtype(np.float32))
    assert launch.run(9, args, (x, describe(y), y)) == 0
    assert launch.run(9, (bytes(20), None, 4096, 2**31 - 1), ()) == 0
    words = [
        x.data_ptr().to_bytes(8, "little"),
        y.ctypes.data.to_bytes(8, "little"),
        (-3).to_bytes(4, "little", signed=True),
    ]
    (function, shape, stream, packed), other = driver.seen
    assert (function, shape, stream) == (1234, (5, 1, 1, 64, 1, 1, 48), 9)
    assert packed == [bytes(range(20)), *words]
    assert other[3] == [bytes(20), bytes(8), (4096).to_bytes(8, "little"), (2**31 - 1).to_bytes(4, "little")]
    driver.status = 719
    assert launch.run(9, args, ()) == 719


@pytest.mark.parametrize("natively", [True, False])
def test_first_rows_share_the_memory(looking: Any, natively: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not natively:
        monkeypatch.setattr(arrays, "_look", None)
    x, ids = torch.arange(24.0).view(4, 3, 2), torch.arange(4, dtype=torch.int64)
    parts = native_host.first_rows(3, x, None, ids)
    assert parts[1] is None and torch.equal(parts[0], x[:3]) and torch.equal(parts[2], ids[:3])
    for whole, part in ((x, parts[0]), (ids, parts[2])):
        assert part.data_ptr() == whole.data_ptr() and part.is_contiguous() and not part._is_view()
        assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata, "record_stream reaches it"
    empty, wide, numbers = native_host.first_rows(0, x, torch.ones(4, 6)[:, 1:3], np.arange(6))
    assert empty.shape == (0, 3, 2) and wide.shape == (0, 2) and numbers.shape == (0,)
    assert looking.first_rows(torch.narrow, 5, (ids,)) is None, "it has no five"
    assert looking.first_rows(torch.narrow, 2, (ids,)) is None, "no function of these arguments"


def test_what_is_not_as_usual_is_left_to_python(looking: Any) -> None:
    driver = FakeDriver()
    launch = _prepare(driver)
    launch.learn(1, np.dtype(np.float32))
    good = (bytes(20), torch.zeros(4, 4), np.zeros(3, np.int64), 1)
    assert launch.run(0, good, ()) == 0
    readonly, meta = np.zeros(3, np.float32), torch.zeros(3, device="meta")
    readonly.flags.writeable = False
    wrong = {
        0: [bytes(19), bytearray(20), 5, None],
        1: [
            torch.zeros(4, 4).t(),
            torch.zeros(4, dtype=torch.int32),
            readonly,
            meta,
            "x",
            1.0,
            -1,
            2**64,
            True,
            object(),
        ],
        2: [np.zeros((4, 4))[:, 1:], np.zeros(2, object)],
        3: [2**31, -(2**31) - 1, 1.0, None, True, np.int32(1)],
    }
    for position, values in wrong.items():
        for value in values:
            args = (*good[:position], value, *good[position + 1 :])
            assert launch.run(0, args, ()) == -1, (position, value)
    assert launch.run(0, good, (meta,)) == -1 and launch.run(0, good, [good[1]]) == -1
    assert launch.run(0, good[:3], ()) == -1 and launch.run(0, [*good], ()) == -1
    assert launch.run(0, good, (describe(good[1])._replace(device="cuda:1"),)) == -1
    assert launch.run(0, (bytes(20), describe(good[1])._replace(device="cuda:1"), *good[2:]), ()) == -1
    driver.context = 78  # of another thread's device
    assert launch.run(0, good, ()) == -1
    assert len(driver.seen) == 1


def test_a_tensor_looks_the_same_either_way(looking: Any) -> None:
    z = torch.zeros(2, 3, dtype=torch.complex64)
    tensors = [
        *(
            torch.zeros(4, 8, dtype=d)
            for d in (torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.uint16)
        ),
        *(torch.zeros(4, 8, dtype=d) for d in (torch.float8_e5m2, torch.complex64, torch.float64)),
        *(torch.zeros(shape) for shape in ((), (1, 1), (0, 8), (1, 4), (2, 1, 3))),
        *(torch.zeros(4, 8).t(), torch.zeros(4, 8)[1:], torch.zeros(4, 8)[:, 1:], z.conj(), z.conj().imag),
        *(torch.zeros(1, 1, dtype=torch.complex64).conj().imag, torch.zeros(4, 4).to_sparse()),
        *(torch.zeros(3, device="meta"), torch.zeros(3, requires_grad=True), torch.nn.Parameter(torch.zeros(3))),
    ]

    def seen(look: Any, tensor: Any) -> Any:
        try:
            return look(tensor)._replace(owner=None)
        except ArgumentError as error:
            return type(error), str(error)

    for tensor in tensors:
        assert seen(describe, tensor) == seen(arrays._describe_torch, tensor)
    assert describe(tensors[0]).owner is tensors[0]
    assert looking.describe(torch.zeros(4, dtype=torch.bfloat16)).dtype is np.dtype(ml_dtypes.bfloat16)
    assert looking.describe(np.zeros(3)) is None and looking.describe("x") is None


def test_torchs_default_device_is_not_asked(looking: Any) -> None:
    tensor, asked = torch.zeros(4, 4), []

    class Mode(torch.overrides.TorchFunctionMode):  # as torch.set_default_device enters
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        describe(tensor)
    assert not asked


def test_a_lent_tensor_holds_its_owner(looking: Any) -> None:
    memory = np.arange(32, dtype=np.float32)

    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    tensor = native_host.lend(memory.ctypes.data, (4, 8), memory.dtype, -1, owner)
    del owner
    assert tensor.shape == (4, 8) and tensor.dtype == torch.float32 and tensor.data_ptr() == memory.ctypes.data
    memory[9] = 5
    assert tensor[1, 1] == 5
    part = tensor[2:]
    del tensor
    gc.collect()
    assert gone() is not None, "a view of it lives"
    del part
    gc.collect()
    assert gone() is None
    eights = np.dtype(ml_dtypes.float8_e4m3fn)
    assert native_host.lend(memory.ctypes.data, (2, 8), eights, -1, None).dtype == torch.float8_e4m3fn
    assert native_host.lend(0, (0, 8), memory.dtype, -1, None).shape == (0, 8)
    assert native_host.lend(0, (1, 8), np.dtype("M8[s]"), -1, None) is None


def test_a_replay_says_what_went_wrong(looking: Any) -> None:
    driver, quick = FakeDriver(), torch._C._dynamo.guards._empty_strided_cpu
    launch = _prepare(driver)
    maker = (quick, ((2, 3), (3, 1), torch.float32))
    params = ((bytes(20), (8, 1, 0)), (2, 4), (0, 0), (0, 8))  # the last is no pointer
    with pytest.raises(ValueError, match="made again"):
        looking.Replay(2, (maker,), ((launch, params),))
    made_of = LoadedKernel("k", 1234, (*_PARAMS[:3], _PARAMS[2]), 1024, 0, 32, None, False, None, b"")
    launch = driver.launches.prepare(made_of, (5, 1, 1), (64, 1, 1), 48)
    params = ((bytes(20), (8, 1, 0)), (2, 4), (0, 0), 4096)
    replay = looking.Replay(2, (maker,), ((launch, params), (launch, params)))
    (x,) = replay.run(9, (1 << 40, 77))
    assert x.shape == (2, 3) and len(driver.seen) == 2 and driver.seen[0][:3] == (1234, (5, 1, 1, 64, 1, 1, 48), 9)
    words = [number.to_bytes(8, "little") for number in (x.data_ptr() + 4, 1 << 40)]
    assert driver.seen[0][3][:3] == [bytes(8) + (77).to_bytes(8, "little") + bytes(4), *words]
    assert replay.run(9, (1,)) is None and replay.run(9, (1, -1)) is None and replay.run(9, [1, 2]) is None
    driver.context = 78
    assert replay.run(9, (1, 2)) is None, "another thread's context"
    driver.context, driver.status = 77, 719
    assert len(driver.seen) == 2 and replay.run(9, (1, 2)) == (0, 719)
    with pytest.raises(RuntimeError):  # torch's own
        looking.Replay(0, ((quick, (1,)),), ((launch, (bytes(20), 0, 0, 0)),)).run(9, ())
    for wrong in (
        ((bytes(20), (13, 1, 0)), 0, 0, 0),
        ((bytes(20), (8, 1)), 0, 0, 0),
        (bytes(19), 0, 0, 0),
        (bytes(20), (3, 0), 0, 0),
        (bytes(20), 0, 0),
    ):
        with pytest.raises(ValueError, match="made again"):
            looking.Replay(2, (maker,), ((launch, wrong),))


class QuietBackend:
    """CudaBackend's launches by a driver that only notes them, over the emulator's backend for all else."""

    device, _part, _closed, _lost = 0, None, False, None
    _launch_again, replay = CudaBackend._launch_again, CudaBackend.replay

    def __init__(self, emulated: Any) -> None:
        self._emulated, self._own_streams = emulated, self
        self.chosen, self.last = 7, 7
        self._kernels: dict[Any, LoadedKernel] = {}
        self._pending: dict[str, int] = {}
        self._events = {7: 0}
        self.seen: list[tuple[Any, ...]] = []
        self._loaded: list[LoadedKernel] = []
        self._functions = _LAUNCH(self._note), _CONTEXT(lambda out: 0)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions]
        self._launches = native_host.Launches(addresses[0], addresses[1], "cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._emulated, name)

    def begin(self, kind: str, async_finish: bool) -> Any:
        return contextlib.nullcontext()

    def is_capturing(self, stream: int) -> bool:
        return False

    def empty(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype.name))

    def synchronize(self) -> None:
        raise AssertionError("nothing was to be waited for")

    def _note(self, function: int, *rest: int) -> int:
        *shape, stream, params, _ = rest
        loaded = self._loaded[function - 1]
        places = (ctypes.c_void_p * len(loaded.params)).from_address(params)
        args = [ctypes.string_at(place, p.size) for place, p in zip(places, loaded.params, strict=True)]
        self.seen.append((loaded.name, tuple(shape), stream, args))
        return 0

    def launch(self, kernel: Any, grid: int, block: int, args: Any, shared_bytes: int = 0, uses: Any = ()) -> None:
        shape, loaded = (grid, block, shared_bytes), self._kernels.get(kernel)
        if loaded is None:
            loaded = LoadedKernel(
                kernel.name, len(self._loaded) + 1, kernel.compile().params, 1024, 0, 32, None, True, None, b""
            )
            self._kernels[kernel] = loaded
            self._loaded.append(loaded)
        if shape not in loaded.again:
            loaded.again[shape] = self._launches.prepare(loaded, (grid, 1, 1), (block, 1, 1), shared_bytes)
            for position, (_, array, _) in enumerate(marshal(kernel.name, loaded.params, args)):
                if array is not None:
                    loaded.again[shape].learn(position, array.dtype)
        assert self._launch_again(loaded, loaded.again[shape], shape, args, uses)  # type: ignore[arg-type]


def _without_addresses(seen: list[tuple[Any, ...]], arrays: list[Any]) -> list[tuple[Any, ...]]:
    """What was launched, with places in arrays instead of addresses."""

    def place(word: int) -> Any:
        for number, array in enumerate(arrays):
            begin, size = array.untyped_storage().data_ptr(), array.untyped_storage().nbytes()
            if size and begin <= word < begin + size:
                return number, word - begin
        return word

    def words(data: bytes) -> list[Any]:
        whole = len(data) // 8 * 8
        return [*map(place, np.frombuffer(data[:whole], np.uint64).tolist()), data[whole:]]

    return [(*launch[:3], list(map(words, launch[3]))) for launch in seen]


def _again_and_by_python(rank: ep_lib.Rank, quantize: str | None, weighted: bool) -> None:
    tokens, experts = 12, 4
    with ep_lib.Buffer(rank, num_experts=experts, top_k=2, hidden=256, max_tokens=16) as buffer:
        mode, quiet = buffer._mode, QuietBackend(rank._backend)
        before = rank._backend, rank.backend
        rank._backend = mode._backend = mode._streams = quiet
        rank.backend, buffer._only_later, buffer._arrived = "cuda", True, None
        report, notify = np.zeros(3 + experts, np.int32), mode._await_plan

        def told(ids: Any, weights: Any) -> Any:
            content = WITH_WEIGHTS * weighted | (CASTS[quantize][0] if quantize else FP8_FLOAT32) << FORM_SHIFT
            report[1:3], report[3:] = [11, content], 5
            mode._report[2:], mode._done[0] = report, 4 * mode._tickets
            return notify(ids, weights)

        mode._await_plan = told

        def call() -> tuple[list[Any], Any]:
            x, scales = torch.zeros(tokens, 256, dtype=torch.bfloat16), torch.zeros(tokens, 2)
            given = [x if quantize else (x.to(torch.float8_e4m3fn), scales), torch.zeros(tokens, 2, dtype=torch.int64)]
            given.append(torch.zeros(tokens, 2) if weighted else None)
            quiet.seen.clear()
            recv = buffer.dispatch(*given, quantize=quantize)
            parts = [*(given[0] if isinstance(given[0], tuple) else given[:1]), *given[1:]]
            parts += [
                recv.handle._routing.ints,
                *recv.x,
                recv.topk_idx,
                recv.topk_weights,
                recv.src_rank,
                recv.src_token,
            ]
            assert len(recv.x[0]) == len(recv.src_token) == 11 and recv.topk_idx.shape == (11, 2)
            call.kept.append(recv)  # type: ignore[attr-defined]
            return _without_addresses(quiet.seen, [part for part in parts if part is not None]), mode._tickets

        call.kept = []  # type: ignore[attr-defined]

        assert len(call()[0]) == 3 and mode._calls == {}, "nothing is known of what comes"
        assert len(call()[0]) == 3 and mode._calls == {}, "it comes for the first time"
        by_python, ticket = call()
        (made_again,) = mode._calls.values()
        assert made_again is not None and len(by_python) == 3
        quiet._launch_again = lambda *_: False  # type: ignore[method-assign]
        natively, next_ticket = call()
        assert next_ticket == ticket + 1 and quiet._pending[natively[0][0]] == 4
        differing = [
            (mine, other)
            for (*_, ours), (*_, theirs) in zip(by_python, natively, strict=True)
            for mine, other in zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True)
            if mine != other
        ]
        assert differing == [(ticket, next_ticket)], "all but the ticket"
        assert [launch[:3] for launch in by_python] == [launch[:3] for launch in natively]
        _by_handles(quiet, mode, buffer, call, quantize, weighted)
        rank._backend, rank.backend = before
        mode._backend, mode._rank.backend = before


def _by_handles(quiet: Any, mode: Any, buffer: Any, call: Any, quantize: str | None, weighted: bool) -> None:
    """Sends rows once more by two handles: Python by the first, and natively by the second."""
    quiet._launch_again, found = CudaBackend._launch_again.__get__(quiet), []
    handles = call.kept[1].handle, call.kept[-1].handle, call.kept[0].handle  # met, learnt, native
    rows = torch.zeros(12, 256, dtype=torch.bfloat16), torch.zeros(12, 2)
    x = rows[0] if quantize else (rows[0].to(torch.float8_e4m3fn), rows[1])
    for handle in handles:
        weights = torch.zeros(12, 2) if weighted else None
        quiet.seen.clear()
        recv = buffer.dispatch(x, None, weights, handle=handle, quantize=quantize)
        arrays = [*recv.x, *((x,) if quantize else x), handle._routing.ints, recv.topk_weights, weights]
        found.append(_without_addresses(quiet.seen, [array for array in arrays if array is not None]))
        if len(found) == 2:
            quiet._launch_again = lambda *_: False
    (by_python, natively), tags = found[1:], [handle._epoch for handle in handles[1:]]
    assert len(by_python) == len(natively) == 2 and tags[0] != tags[1]
    differing = [
        (mine, other)
        for (*_, ours), (*_, theirs) in zip(by_python, natively, strict=True)
        for mine, other in zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True)
        if mine != other
    ]
    content = WITH_WEIGHTS * weighted | (CASTS[quantize][0] if quantize else FP8_FLOAT32) << FORM_SHIFT
    assert differing == [tuple(Tag(tag, content).number for tag in tags)], "all but the handle's name"


@pytest.mark.parametrize(("quantize", "weighted"), [(None, True), ("mxfp8", False)])
def test_a_call_made_again_launches_what_python_does(
    looking: Any, monkeypatch: pytest.MonkeyPatch, quantize: str | None, weighted: bool
) -> None:
    quick = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(tensors, "_quick", lambda: quick)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    ep_lib.spawn(_again_and_by_python, 1, "emulator", args=(quantize, weighted))


def _low_latency_again(rank: ep_lib.Rank, fp8: bool, weighted: bool) -> None:
    sizes = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 16, "num_max_dispatch_tokens_per_rank": 16}
    with ep_lib.Buffer(rank, **sizes) as buffer:
        mode: Any = buffer._low_latency
        quiet, before = QuietBackend(rank._backend), (rank._backend, rank.backend)
        rank._backend = mode._streams = quiet
        rank.backend, mode._arrived, mode._empty = "cuda", None, quiet.empty

        def call() -> list[Any]:
            given = [torch.zeros(12, 256, dtype=torch.bfloat16), torch.zeros(12, 2, dtype=torch.int64)]
            weights = torch.zeros(12, 2) if weighted else None
            quiet.seen.clear()
            got = buffer.low_latency_dispatch(*given, use_fp8=fp8, topk_weights=weights)
            came = got.handle._arrivals
            assert got.recv_count.shape == (4,) and came.recv_index.shape == (1, 16, 2) and len(came.token_counts) == 1
            assert got.recv_count.data_ptr() == came.ints.data_ptr()
            rows = got.recv_x if fp8 else (got.recv_x,)
            assert rows[0].shape == (4, 16, 256) and len(rows) == 1 + fp8
            arrays = [*given, weights, *rows, came.ints, came.weights]
            return _without_addresses(quiet.seen, [array for array in arrays if array is not None])

        by_python = call()
        (made_again,) = mode._calls.values()
        assert made_again is not None and len(by_python) == 1
        quiet._launch_again = lambda *_: False  # type: ignore[method-assign]
        assert call() == by_python
        rank._backend, rank.backend = before


@pytest.mark.parametrize(("fp8", "weighted"), [(True, False), (False, True)])
def test_a_low_latency_dispatch_made_again(
    looking: Any, monkeypatch: pytest.MonkeyPatch, fp8: bool, weighted: bool
) -> None:
    quick = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(tensors, "_quick", lambda: quick)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    ep_lib.spawn(_low_latency_again, 1, "emulator", args=(fp8, weighted))
