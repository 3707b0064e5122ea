"""The native code of a call: it takes what is as usual, and leaves everything else to Python, without a GPU."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ep_lib.cuda import native_host
from ep_lib.cuda.module import LoadedKernel
from ep_lib.errors import ArgumentError
from ep_lib.jit.signature import Param
from ep_lib.memory import arrays
from ep_lib.memory.arrays import describe

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
    loaded = LoadedKernel("k", 1234, _PARAMS, 1024, 0, 32, None, False)
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
