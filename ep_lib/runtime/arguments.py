"""Checks of the arguments that ``spawn``, ``check`` and similar functions share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

from ep_lib.config import Config
from ep_lib.errors import ArgumentError, RankFailed
from ep_lib.jit.device_state import MAX_RANKS
from ep_lib.require import brief, is_about_the_call, one_of, refuse, seconds, several, show, whole_number
from ep_lib.transports import registry


def program(main: Callable[..., Any], ranks: Any, args: Any) -> tuple[int, tuple[Any, ...]]:
    """The number of ranks and the arguments of ``main`` after the rank. Raises ArgumentError if ``main`` cannot be
    called with them."""
    if not callable(main):
        refuse("main", main, "a function that takes a Rank")
    if _never_runs(main) or _never_runs(type(main).__call__):
        refuse("main", main, "an ordinary function: calling an async def or a generator runs nothing of it")
    given = tuple(several("args", args, "a tuple or a list of what main takes after the rank"))
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):  # some built-in functions have no signature
        signature = None
    if signature is not None:
        try:
            signature.bind(None, *given)
        except TypeError as error:
            raise ArgumentError(
                f"main is {show(main)}{signature}, which cannot be called with a Rank and {len(given)} more: {error}; "
                "args= are what main takes after the rank"
            ) from error
    return whole_number("ranks", ranks, 1, MAX_RANKS), given


def run_main(main: Callable[..., Any], rank: Any, args: Iterable[Any]) -> Any:
    """Calls ``main`` and returns its result. Raises ArgumentError if ``main`` is a built-in function that cannot be
    called with a Rank, which shows only in the call. Raises RankFailed where ``main`` calls ``sys.exit``, which would
    otherwise silently end the program that started the ranks. (A child that ``main`` forked ends as it likes.)"""
    process = os.getpid()
    try:
        return main(rank, *args)
    except SystemExit as end:
        if os.getpid() != process:
            raise
        code = "" if end.code is None else repr(end.code)
        raise RankFailed(
            f"rank {rank.rank} called sys.exit({code}) before the ranks were done: return from main instead, or raise "
            "an exception that says what is wrong",
            rank=rank.rank,
        ) from end
    except TypeError as error:
        if not is_about_the_call(error):
            raise
        raise ArgumentError(f"main is {show(main)}, which cannot be called with a Rank: {error}") from error


def _never_runs(function: Any) -> bool:
    """Whether calling it only creates an object (a coroutine or generator) that its caller must run."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def a_seed(value: Any, name: str = "seed") -> int:
    """The validated seed of a schedule. Raises ArgumentError."""
    return whole_number(name, value, 0, 2**63 - 1)


def limits(heap_bytes: Any, timeout: Any) -> tuple[int | None, float | None]:
    """A heap's size in bytes and a time limit in seconds: those given, else the environment's; None leaves either to
    the backend. Raises ArgumentError."""
    config = Config.from_environment()
    heap_bytes = config.heap_bytes if heap_bytes is None else heap_bytes
    timeout = config.timeout_s if timeout is None else timeout
    if heap_bytes is not None:
        heap_bytes = whole_number("heap_bytes", heap_bytes, 4096, 1 << 46)
    return heap_bytes, None if timeout is None else seconds("timeout", timeout)


def shared_gpus(gpus: Any, ranks: int, transport: str) -> int | None:
    """How many GPUs the ranks share; None if each has its own. Raises ArgumentError."""
    if gpus is None or whole_number("gpus", gpus, 1, 1000) >= ranks:
        return None
    if transport not in ("auto", "p2p"):
        raise ArgumentError(
            f"transport is {transport!r}; ranks that share a GPU (gpus={gpus}) have p2p only: leave it out"
        )
    return int(gpus)


def emulator_transport(value: Any) -> str:
    """The transport that implements ``ep::net_*`` on the emulator; None means the emulated NICs. Raises
    ArgumentError."""
    if value is None:
        return "emulated"
    if not isinstance(value, str):
        refuse("transport", value, "None or a str")
    known = registry.names("emulator")
    if value not in known:
        what = "it is for GPUs" if value in registry.names() else "there is none of that name"
        raise ArgumentError(
            f"transport is {brief(value)}; {what}. The emulator's networks are chosen by fabric, and its transports "
            f"are {', '.join(map(repr, known))}"
        )
    return value


def a_transport(value: Any) -> str:
    """How ranks on GPUs reach each other. Raises ArgumentError."""
    return one_of("transport", value, registry.names())
