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
_NULLS = ((bytes(8),), (bytes(8),), (bytes(4),))  # for all but the first


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
    before = arrays._look, arrays._native
    assert native_host.look_at_tensors() or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    arrays.look_natively(native)
    yield native
    arrays._look, arrays._native = before


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
    tensor = arrays.lend(memory.ctypes.data, (4, 8), memory.dtype, -1, owner)
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
    assert arrays.lend(memory.ctypes.data, (2, 8), eights, -1, None).dtype == torch.float8_e4m3fn
    assert arrays.lend(0, (0, 8), memory.dtype, -1, None).shape == (0, 8)
    assert arrays.lend(0, (1, 8), np.dtype("M8[s]"), -1, None) is None


def test_an_operation_says_what_went_wrong(looking: Any) -> None:
    driver, quick = FakeDriver(), torch._C._dynamo.guards._empty_strided_cpu
    launch, x = _prepare(driver), torch.zeros(4)
    maker = (quick, torch.float32, ((1, 0), (-1, 3)))  # as many rows as the second value says
    struct = (bytes(20), (8, 8, 2, 0, -1, 0), (16, 4, 1, 0, -1, 0))
    params = (struct, (bytes(8), (0, 8, 3, 4, -1, 0)), (bytes(8), (0, 8, 0, 8, 1, 16)), (bytes(4),))
    operation = looking.Operation(3, (maker,), ((launch, params), (launch, params)))
    for rows in (2, 5, 0):
        driver.seen.clear()
        (made,) = operation.run(9, (describe(x), rows, 1 << 40))
        assert made.shape == (rows, 3) and made.is_contiguous() and len(driver.seen) == 2
        assert driver.seen[0][:3] == (1234, (5, 1, 1, 64, 1, 1, 48), 9)
        words = [number.to_bytes(8, "little") for number in (made.data_ptr() + 4, x.data_ptr() + 8 + 16 * rows)]
        packed = bytes(8) + (1 << 40).to_bytes(8, "little") + rows.to_bytes(4, "little")
        assert driver.seen[0][3] == [packed, *words, bytes(4)]
    driver.seen.clear()
    assert operation.run(9, (None, 2, None))[0].shape == (2, 3) and driver.seen[0][3][0][8:16] == bytes(8)
    driver.seen.clear()
    for unusual in ((x, 2), (x, 2, 3), (None, -1, 3), (None, 2.0, 3), [None, 2, 3], (None, True, 3)):
        assert operation.run(9, unusual) is None, unusual
    driver.context = 78
    assert operation.run(9, (None, 1, 2)) is None, "another thread's context"
    driver.context = 77
    numbers = looking.Operation(1, (), ((launch, ((bytes(20), (0, 4, 0, 0, -1, 0)), *_NULLS)),))
    assert numbers.run(9, (1 << 31,)) is None and not driver.seen, "too large for an int"
    driver.status = 719
    assert operation.run(9, (None, 1, 2)) == (0, 719)
    with pytest.raises((RuntimeError, TypeError)):  # torch's own
        looking.Operation(0, ((quick, 1, ((-1, 2),)),), ((launch, (struct[:1], *_NULLS)),)).run(9, ())
    wrong_params = [
        (bytes(20), (13, 8, 0, 0, -1, 0)),
        (bytes(20), (8, 3, 0, 0, -1, 0)),
        (bytes(20), (8, 8, 4, 0, -1, 0)),
    ]
    wrong_params += [(bytes(20), (8, 8, 0, 0, 4, 0)), (bytes(20), (8, 8)), (bytes(19),), (), bytes(20)]
    wrong = [(maker, ((launch, (param, *_NULLS)),)) for param in wrong_params]
    wrong += [(maker, ()), (maker, ((launch, _NULLS),)), ((quick, torch.float32), ((launch, params),))]
    wrong += [((quick, torch.float32, ((3, 0),)), ((launch, params),))]
    for maker_of, steps in wrong:
        with pytest.raises(ValueError, match="natively"):
            looking.Operation(3, (maker_of,), steps)


class QuietBackend:
    """CudaBackend's launches by a driver that only notes them, over the emulator's backend for all else."""

    device, _part, _closed, _lost = 0, None, False, None
    host_waits = sees_values = costly_threads = False
    _launch_again, executor = CudaBackend._launch_again, CudaBackend.executor

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
        return describe(torch.empty(shape, dtype=getattr(torch, dtype.name)))

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


def _differing(by_python: list[Any], natively: list[Any]) -> list[tuple[Any, Any]]:
    """Words of arguments that differ between the same launches."""
    assert [launch[:3] for launch in by_python] == [launch[:3] for launch in natively]
    return [
        (mine, other)
        for (*_, ours), (*_, theirs) in zip(by_python, natively, strict=True)
        for mine, other in zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True)
        if mine != other
    ]


def _quiet(rank: ep_lib.Rank, *modes: Any) -> Any:
    """A backend for modes that launches nothing, in which each operation is native once it ran."""
    quiet = QuietBackend(rank._backend)
    rank._backend = quiet  # type: ignore[assignment]
    for mode in modes:
        mode._backend = mode._streams = quiet
        mode._empty = quiet.empty
    return quiet


def _two_ways(quiet: Any, call: Any, forget: Any) -> Any:
    """What ``call(tokens)`` launches by Python, and natively; other numbers of tokens are no other operations."""
    quiet.executor = lambda operation: None
    by_python = [call(tokens) for tokens in COUNTS]
    forget()
    del quiet.executor
    call(COUNTS[0])
    quiet._launch_again = lambda *_: False  # from now on, natively or not at all
    natively = [call(tokens) for tokens in COUNTS]
    assert all(launches for launches, _ in by_python)
    return by_python, natively


COUNTS = 12, 7, 1, 16


def _natively_and_by_python(rank: ep_lib.Rank, quantize: str | None, weighted: bool, options: dict[str, Any]) -> None:
    experts = 4
    with ep_lib.Buffer(rank, num_experts=experts, top_k=2, hidden=256, max_tokens=16) as buffer:
        mode: Any = buffer._mode
        before = rank._backend
        quiet = _quiet(rank, mode)
        buffer._arrived = None
        notify = mode._await_plan

        def told(ids: Any, weights: Any) -> Any:
            content = WITH_WEIGHTS * weighted | (CASTS[quantize][0] if quantize else FP8_FLOAT32) << FORM_SHIFT
            mode._report[3:5], mode._report[5:] = [ids.shape[0], content], 5
            mode._done[0] = 4 * mode._tickets
            return notify(ids, weights)

        mode._await_plan = told

        def call(tokens: int) -> tuple[list[Any], set[int]]:
            rows, scales = torch.zeros(tokens, 256, dtype=torch.bfloat16), torch.zeros(tokens, 2)
            x: Any = rows if quantize else (rows.to(torch.float8_e4m3fn), scales)
            ids, weights = torch.zeros(tokens, 2, dtype=torch.int64), torch.zeros(tokens, 2) if weighted else None
            quiet.seen.clear()
            recv = buffer.dispatch(x, ids, weights, quantize=quantize, **options)
            again = buffer.dispatch(x, None, weights, handle=recv.handle, quantize=quantize, **options)
            y = torch.zeros(len(recv.src_token), 256, dtype=torch.bfloat16)
            out = buffer.combine(y, recv.handle, weights)
            assert len(recv.x[0]) == len(y) == tokens and out.shape == (tokens, 256)
            arrays = [*(x if isinstance(x, tuple) else (x,)), ids, weights, recv.handle._routing.ints, y, out]
            for came in (recv, again):
                grouped = came.by_expert
                of_experts = [] if grouped is None else [*grouped.x, grouped.weights, grouped.row, grouped.slot]
                arrays += [*came.x, came.topk_idx, came.topk_weights, came.src_rank, came.src_token, *of_experts]
                arrays += [] if grouped is None else [grouped.offsets]
            content = WITH_WEIGHTS * weighted | (CASTS[quantize][0] if quantize else FP8_FLOAT32) << FORM_SHIFT
            tags = {mode._tickets, Tag(recv.handle._epoch, content).number, Tag(recv.handle._epoch).number}
            return _without_addresses(quiet.seen, [array for array in arrays if array is not None]), tags

        found = _two_ways(quiet, call, mode._operations.clear)
        for (by_python, its), (natively, others) in zip(*found, strict=True):
            assert len(by_python) >= 6
            for mine, other in _differing(by_python, natively):
                assert mine in its and other in others, "all but the ticket and the handle's name"
        rank._backend = before
        mode._backend = before


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("quantize", "weighted", "options"),
    [
        (None, True, {}),
        ("mxfp8", False, {}),
        (None, True, {"sorted_by_expert": True, "column_major_scales": True}),
        ("fp8", True, {"copy": False}),
    ],
)
def test_an_operation_launches_what_python_does(
    looking: Any, monkeypatch: pytest.MonkeyPatch, quantize: str | None, weighted: bool, options: dict[str, Any]
) -> None:
    quick = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(tensors, "_quick", lambda: quick)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    ep_lib.spawn(_natively_and_by_python, 1, "emulator", args=(quantize, weighted, options))


def _low_latency_natively(rank: ep_lib.Rank, fp8: bool, weighted: bool) -> None:
    sizes = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 16, "num_max_dispatch_tokens_per_rank": 16}
    with ep_lib.Buffer(rank, **sizes) as buffer:
        mode: Any = buffer._low_latency
        before = rank._backend
        quiet = _quiet(rank, mode)
        mode._arrived = None

        def call(tokens: int) -> tuple[list[Any], None]:
            x, ids = torch.zeros(tokens, 256, dtype=torch.bfloat16), torch.zeros(tokens, 2, dtype=torch.int64)
            weights, own = torch.zeros(tokens, 2) if weighted else None, torch.zeros(tokens, 2)
            quiet.seen.clear()
            got = buffer.low_latency_dispatch(x, ids, use_fp8=fp8, topk_weights=weights)
            came = got.handle._arrivals
            assert got.recv_count.shape == (4,) and came.recv_index.shape == (1, 16, 2) and len(came.token_counts) == 1
            rows = got.recv_x if fp8 else (got.recv_x,)
            assert rows[0].shape == (4, 16, 256) and len(rows) == 1 + fp8
            y = torch.zeros(4, 16, 256, dtype=torch.bfloat16)
            out = buffer.low_latency_combine(y, ids, None if weighted else own, got.handle).out
            arrays = [x, ids, weights, own, *rows, came.counts, came.ints, came.weights, y, out]
            return _without_addresses(quiet.seen, [array for array in arrays if array is not None]), None

        by_python, natively = _two_ways(quiet, call, mode._operations.clear)
        assert by_python == natively and [len(launches) for launches, _ in natively] == [2] * len(COUNTS)
        rank._backend = before


@pytest.mark.parametrize(("fp8", "weighted"), [(True, False), (False, True)])
def test_low_latency_natively(looking: Any, monkeypatch: pytest.MonkeyPatch, fp8: bool, weighted: bool) -> None:
    quick = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(tensors, "_quick", lambda: quick)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    ep_lib.spawn(_low_latency_natively, 1, "emulator", args=(fp8, weighted))
