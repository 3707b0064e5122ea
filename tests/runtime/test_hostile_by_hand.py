"""Mistakes that tables of values do not make: stale arrays, a main that runs nothing, half an environment."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ep_lib
from ep_lib import Rank, cli
from ep_lib.compat import nixl
from ep_lib.errors import ArgumentError, BackendUnavailable, EpError, HandleError, KernelCompileError, KernelFault

WORDS = """
#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <pthread.h>
#include <thread>
#include <unistd.h>
struct Two { int* at; long long n; };
extern "C" __global__ void add(int* x) { x[0] += 1; }
extern "C" __global__ void of_two(Two two) { two.at[0] = 1; }
extern "C" __global__ void checked(int* x) { assert(x[0] == 5); }
extern "C" __global__ void prints(int* x, const char* text) { printf("<%s>\\n", text); x[0] = 1; }
extern "C" __global__ void counts(int* x, const char*) { printf("%d%% %5.3hhn", 1, (signed char*)x); }
extern "C" __global__ void leaves(int* x) { exit(3); }
extern "C" __global__ void kills(int* x) { raise(SIGKILL); }
extern "C" __global__ void forks(int* x) { x[0] = fork(); }
extern "C" __global__ void runs(int* x) { x[0] = system("true"); }
extern "C" __global__ void locks(int* x) { pthread_mutex_t m = {}; pthread_mutex_lock(&m); }
extern "C" __global__ void starts(int* x) { std::thread([] {}).join(); }
extern "C" __global__ void calls(int* x) { void (*volatile nothing)() = nullptr; nothing(); }
"""


OWN_ALARM = """
extern "C" __device__ void alarm(int* x) { x[0] = 4; }
extern "C" __global__ void rings(int* x) { alarm(x); }
"""


def kernel(name: str, source: str = WORDS) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_source(source, name, filename="words.cu")


def spawn(main: Callable[[Rank], Any], ranks: int = 1) -> list[Any]:
    return ep_lib.spawn(main, ranks, "emulator")


async def runs_later(rank: Rank) -> None: ...


def runs_bit_by_bit(rank: Rank) -> Iterator[None]:
    yield


async def runs_some_day(rank: Rank) -> AsyncIterator[None]:
    yield


class Later:
    async def __call__(self, rank: Rank) -> None: ...


@pytest.mark.parametrize("main", [runs_later, runs_bit_by_bit, runs_some_day, Later()])
def test_a_main_that_would_run_nothing(main: Callable[[Rank], Any]) -> None:
    for start in (ep_lib.spawn, ep_lib.check, ep_lib.simulate):
        with pytest.raises(ArgumentError, match="ordinary function"):
            start(main, 1)  # type: ignore[operator]


def test_free_of_an_array_whose_place_is_another_ones() -> None:
    def main(rank: Rank) -> int:
        first = rank.symmetric(8, np.int32)
        rank.free(first)
        for is_taken in (False, True):
            if is_taken:
                second = rank.symmetric(8, np.int32)  # at the same place
            for use in (rank.free, rank.offset_of, lambda array: rank.peer_address(array, 0)):
                with pytest.raises(ArgumentError, match="freed"):
                    use(first)
        return rank.offset_of(second)

    assert spawn(main)[0] > 0


def test_a_tensor_of_a_freed_array_does_not_write_to_the_next_array() -> None:
    torch = pytest.importorskip("torch")

    def main(rank: Rank) -> None:
        first = rank.symmetric(8, np.int32)
        tensor = torch.from_numpy(first)
        rank.free(first)
        second = rank.symmetric((2, 4), np.int32)
        kernel("add").launch(rank, 1, 1, tensor)
        try:
            rank.synchronize()
        finally:
            assert not second.any()

    with pytest.raises(KernelFault, match="which was freed"):
        spawn(main)


def test_ranks_agree_on_a_place_after_they_did_not() -> None:
    """What a rank was given and could not keep is no array that was freed."""

    def main(rank: Rank) -> list[int]:
        with pytest.raises(EpError, match="different symmetric arrays"):
            rank.symmetric(64 << rank.rank * 4, np.int32)
        return [rank.offset_of(rank.symmetric(64, np.int32)) for _ in range(4)]

    offsets, others = spawn(main, 2)
    assert offsets == others


@pytest.mark.parametrize("low_latency", [False, True])
def test_a_copy_of_other_rows_than_the_handles(low_latency: bool) -> None:
    """As many rows, of the same tokens, for other experts: only where the rows came from tells the handles apart."""
    x = np.arange(4 * 128, dtype=np.float32).reshape(4, 128).astype(ml_dtypes.bfloat16)
    weights = np.ones((4, 1), np.float32)
    first, second = np.array([[0], [0], [1], [1]]), np.array([[1], [1], [0], [0]])

    def dispatch(buffer: ep_lib.Buffer, choices: Any) -> tuple[Any, Any]:
        if low_latency:
            sent = buffer.low_latency_dispatch(x, choices, use_fp8=False)
            return sent.recv_x, sent.handle
        received = buffer.dispatch(x, choices, weights)
        return received.x, received.handle

    def main(rank: Rank) -> None:
        buffer = ep_lib.Buffer(
            rank, num_experts=2, top_k=1, hidden=128, max_tokens=4, num_sms=2, num_max_dispatch_tokens_per_rank=4
        )
        # in normal mode the rows of two ranks are sorted by rank and token: every second token swaps ranks
        choices = (first, second) if low_latency else (first[[0, 2, 1, 3]], first[[2, 0, 3, 1]])
        rows, handle = dispatch(buffer, choices[0])
        rank.synchronize()
        others, _ = dispatch(buffer, choices[1])
        rank.synchronize()

        def combine(values: Any) -> Any:
            if low_latency:
                out = buffer.low_latency_combine(values, choices[0], weights, handle).out
            else:
                out = buffer.combine(values, handle)
            rank.synchronize()
            return out

        assert (combine(rows.copy()) == x).all()
        assert (combine(rows * 2) == x * 2).all()
        combine(np.ones_like(rows))
        with pytest.raises(HandleError, match="a copy of it"):
            combine(others.copy())

    spawn(main, 2)


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "m8", "V4", np.str_, np.void])
def test_types_that_are_no_numbers(dtype: Any) -> None:
    def main(rank: Rank) -> None:
        for make in (rank.symmetric, rank.empty, rank.host_array):
            with pytest.raises(ArgumentError, match="type of numbers"):
                make(3, dtype)

    spawn(main)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (2**40, 0, 2**40)])
def test_shapes_that_only_a_zero_makes_small(shape: tuple[int, ...]) -> None:
    def main(rank: Rank) -> None:
        for make in (rank.symmetric, rank.empty, rank.host_array):
            with pytest.raises(ArgumentError, match="shape is"):
                make(shape, np.float32)

    spawn(main)


@pytest.mark.parametrize(("fill", "dtype"), [("x", bool), (300, bool), (float("nan"), bool), ("1", "f4"), (b"1", "i8")])
def test_fills_with_a_truth_or_a_number_of_their_own(fill: Any, dtype: Any) -> None:
    with pytest.raises(ArgumentError, match="fill is"):
        spawn(lambda rank: rank.symmetric(3, dtype, fill))


class FailsToCopy:
    def __init__(self, on_the_way: Callable[[], Any]) -> None:
        self.on_the_way = on_the_way

    def __reduce__(self) -> Any:
        return self.on_the_way()


def _fails() -> Any:
    raise ValueError("ctypes objects containing pointers cannot be pickled")


@pytest.mark.parametrize("on_the_way", [_fails, lambda: (int, ("no number",))])
def test_what_cannot_be_copied_to_other_ranks(on_the_way: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match="cannot be copied"):
        spawn(lambda rank: rank.all_gather(FailsToCopy(on_the_way)), 2)


class Struct:
    def __init__(self, data: Any, arrays: Any = ()) -> None:
        self.data, self.arrays = data, arrays

    def ep_kernel_arg(self) -> Any:
        return self.data

    def ep_kernel_arrays(self) -> Any:
        return self.arrays


@pytest.mark.parametrize("struct", [Struct("text"), Struct(16), Struct(None), Struct(bytes(16), 3)])
def test_structs_that_are_no_bytes(struct: Struct) -> None:
    with pytest.raises(EpError, match=r"not bytes|list of arrays"):
        spawn(lambda rank: kernel("of_two").launch(rank, 1, 1, struct))


def test_arguments_that_do_not_fit() -> None:
    sizes = dict(num_experts=2, top_k=1, hidden=64, max_tokens=4)
    with pytest.raises(ArgumentError, match=r"unexpected keyword argument 'tokens'; Buffer takes rank, num_experts, "):
        spawn(lambda rank: ep_lib.Buffer(rank, **sizes, tokens=3))
    with pytest.raises(ArgumentError, match=r"12 were given; Fabric takes kind, ranks_per_node, "):
        ep_lib.Fabric("rc", 1, True, 4, 64, False, (), {}, {}, {}, 3)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"built-in function len.*cannot be called with a Rank: object of type"):
        spawn(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unsupported operand"):  # a main's own mistake stays what it is
        spawn(lambda rank: 1 + None)  # type: ignore[operator]


def test_a_buffer_told_nonsense() -> None:
    sizes = dict(num_experts=2, top_k=1, hidden=64, max_tokens=4)
    with pytest.raises(ArgumentError, match="on_fault is 'log'"):
        spawn(lambda rank: ep_lib.Buffer(rank, **sizes, on_fault="log"))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"takes the arguments of Buffer: .*'tokens'"):
        ep_lib.Buffer.symmetric_bytes(2, **sizes, tokens=3)
    with pytest.raises(ArgumentError, match="a masked array of shape"):
        spawn(lambda rank: ep_lib.Buffer(rank, **sizes).dispatch(np.ma.zeros((1, 64)), np.zeros((1, 1), np.int64)))


@pytest.mark.parametrize("request_", [nixl.Request("kFoo", ()), nixl.Request("kWriteRequest", (nixl.Region(0, 8, 0),))])
def test_a_request_made_by_hand(request_: nixl.Request) -> None:
    with pytest.raises(ArgumentError, match=re.escape("no create_..._req")):
        spawn(lambda rank: nixl.DeviceHost(rank).create_gpu_req(request_))


def test_an_empty_name_is_no_fabric() -> None:
    with pytest.raises(ArgumentError, match="fabric is ''"):
        ep_lib.spawn(lambda rank: None, 1, "emulator", fabric="")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EP_LIB_CACHE_DIR", "~nobody_here/x"),
        ("EP_LIB_WORKSHOP", "~nobody_here/x"),
        ("EP_LIB_CACHE_DIR", "/tmp/\udcff"),
        ("EP_LIB_SANITIZE", "1"),
    ],
)
def test_settings_that_cannot_be_used(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "EP_LIB_SANITIZE" and "libasan" in Path("/proc/self/maps").read_text():
        pytest.skip("the sanitizers are loaded")
    monkeypatch.setenv(name, value)
    with pytest.raises((ArgumentError, BackendUnavailable), match=name):
        ep_lib.Kernel.from_source(WORDS, "add").compile()


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_ports_that_are_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "--port", port]) == 1
    assert f"--port is {port}" in capsys.readouterr().err


@pytest.mark.parametrize("data", [None, 3, "x", [None], [{}], {"a": 1}, np.zeros((2, 2), object), float("nan")])
def test_what_no_picture_shows(data: Any) -> None:
    from ep_lib import viz

    with pytest.raises(ArgumentError, match=re.escape("cannot draw this: ")):
        viz.run_timeline(data)
    with pytest.raises(ArgumentError):
        viz.roofline(data)
    with pytest.raises(ArgumentError):
        viz.rank_color([data])  # type: ignore[arg-type]


# ---- in kernels ----------------------------------------------------------------------------------------------------
def run(name: str, *more: Any) -> None:
    def main(rank: Rank) -> None:
        kernel(name).launch(rank, 1, 1, rank.symmetric(4, np.int32), *more)
        rank.synchronize()

    spawn(main)


@pytest.mark.extended
def test_a_failed_assertion_names_the_users_file() -> None:
    with pytest.raises(KernelFault, match=re.escape("assertion failed: x[0] == 5 (words.cu:")):
        run("checked")


def test_a_format_does_not_write_into_memory() -> None:
    with pytest.raises(KernelFault, match="prints with %n, which GPUs do not have"):
        run("counts", 0)


@pytest.mark.parametrize("address", [0x12345678, 8, 2**63, 2**64 - 1])
def test_a_text_that_is_not_there_is_printed(address: int) -> None:
    with pytest.raises(KernelFault, match=re.escape("prints a text (%s) that is not there")):
        run("prints", address)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("leaves", "exit(), which kernels do not have: return ends a thread"),
        ("kills", "raise(), which kernels do not have: return ends a thread"),
        ("forks", "fork(), which kernels do not have: the host can call it"),
        ("runs", "system()"),
        ("locks", "pthread_mutex_lock()"),
        ("starts", "std::thread()"),
    ],
)
def test_a_kernel_that_calls_what_only_hosts_have(name: str, what: str) -> None:
    with pytest.raises(KernelFault, match=re.escape(f"calls {what}")) as raised:
        run(name)
    assert f"void {name}(" in raised.value.source


def test_a_kernel_with_a_function_of_its_own_by_such_a_name() -> None:
    def main(rank: Rank) -> int:
        x = rank.symmetric(1, np.int32)
        kernel("rings", OWN_ALARM).launch(rank, 1, 1, x)
        rank.synchronize()
        return int(x[0])

    assert spawn(main) == [4]


_WAY = 'extern "C" { static __device__ void* way() { return nullptr; }'


@pytest.mark.parametrize(
    ("line", "source", "used"),
    [
        (1, "int f() { return 1 / (int)(sizeof(int) - 4); }  int g = f();", "*x = g;"),
        (2, "\nstruct A { A() { *(volatile int*)0 = 1; } };  A a;", "*x = *(int*)&a;"),
        (3, "\n\n__attribute__((constructor)) void early() { *(volatile int*)0 = 1; }", ""),
        (1, "__attribute__((destructor)) void late() { *(volatile int*)0 = 1; }", ""),
        (1, '__attribute__((section(".init"))) void early() {}', ""),
        (1, f'{_WAY} __device__ void taken() __attribute__((ifunc("way"))); }}', ""),
    ],
)
def test_what_would_run_when_a_kernel_is_loaded(line: int, source: str, used: str) -> None:
    """What no kernel uses is the host's, and set aside."""
    source += f'\nextern "C" __global__ void k(int* x) {{ {used} }}'
    with pytest.raises(KernelCompileError, match=f"words.cu:{line}: error: this runs when the kernel is loaded"):
        ep_lib.Kernel.from_source(source, "k", filename="words.cu").compile()


def test_a_function_that_is_not_there_is_called() -> None:
    with pytest.raises(KernelFault, match="calls a function at 0x0"):
        run("calls")
