"""The ctypes binding of the C++ runtime (emulator/runtime): loading, types and signatures, nothing else."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from ep_lib.errors import BackendUnavailable
from ep_lib.jit import runtime_library, toolkit

# Outcome in runtime/machine.hpp
DONE, DEADLOCK, FAULT, STOPPED = range(4)


class FabricSettings(Structure):
    """``epemu::FabricSettings`` in runtime/network.hpp."""

    _fields_ = [
        (name, c_int32) for name in ("kind", "ranks_per_node", "p2p", "queue_pairs", "queue_depth", "global_atomics")
    ]


class Settings(Structure):
    """``epemu::Settings``: fixed when a machine is made."""

    _fields_ = [
        ("seed", c_uint64),
        ("heap_bytes", c_uint64),
        ("heap_span", c_uint64),
        ("stack_bytes", c_uint64),
        ("max_resident_threads", c_uint64),
        ("max_resident_blocks", c_uint64),
        ("program_steps", c_uint64),
        ("home", c_int64),
        ("fabric", FabricSettings),
    ]


class Range(Structure):
    """``epemu::Range``: host memory that a kernel may touch."""

    _fields_ = [("begin", c_uint64), ("end", c_uint64), ("writable", ctypes.c_bool)]


class Bounds(Structure):
    """``epemu::Exploration::Bounds`` in runtime/exploration.hpp."""

    _fields_ = [("preemptions", c_int64), ("reduction", c_int64), ("events", c_uint64), ("turns", c_uint64)]


class ExplorationStatus(Structure):
    """``epemu::Exploration::Status``."""

    _fields_ = [
        *((name, c_uint64) for name in ("explored", "redundant", "cut", "counted", "skipped", "calm", "most_events")),
        *((name, c_uint64) for name in ("switches", "decisions")),
        ("whole", c_double),
        ("equivalence", c_uint64),
        ("outcome", c_int32),
        ("inputs", c_uint64),
    ]


class LaunchRequest(Structure):
    """``LaunchRequest`` in runtime/api.cpp."""

    _fields_ = [
        ("rank", c_int32),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("static_shared", c_uint64),
        ("dynamic_shared", c_uint64),
        ("kernel", c_char_p),
        ("arg_bytes", c_char_p),
        ("arg_offsets", POINTER(c_uint64)),
        ("num_args", c_uint64),
        ("num_arg_bytes", c_uint64),
        ("parameters", c_char_p),
        ("ranges", POINTER(Range)),
        ("num_ranges", c_uint64),
        ("read_only", POINTER(Range)),
        ("num_read_only", c_uint64),
    ]


_SIGNATURES = {
    "epemu_create": ([c_int, POINTER(Settings)], c_void_p),
    "epemu_destroy": ([c_void_p], None),
    "epemu_keep_stacks": ([c_int], None),
    "epemu_machine_heap": ([c_void_p, c_int], c_void_p),
    "epemu_map_heap": ([c_void_p, c_int, c_int], c_int),
    "epemu_forward": ([c_void_p, c_int, c_int, c_int], None),
    "epemu_forwarded_bytes": ([c_void_p, POINTER(c_uint64), POINTER(c_uint64)], None),
    "epemu_end_forwarding": ([c_void_p], None),
    "epemu_link_ended": ([c_void_p, c_int], c_int),
    "epemu_set_arrays": ([c_void_p, c_int, POINTER(c_uint64), c_uint64], None),
    "epemu_load_image": ([c_void_p, c_char_p, c_char_p], c_void_p),
    "epemu_error": ([], c_char_p),
    "epemu_symbol": ([c_void_p, c_char_p], c_void_p),
    "epemu_launch": ([c_void_p, c_void_p, c_void_p, POINTER(LaunchRequest)], c_int64),
    "epemu_launch_service": ([c_void_p, c_void_p, c_void_p, POINTER(LaunchRequest)], c_int64),
    "epemu_done_ticket": ([c_void_p, c_int], c_int64),
    "epemu_register": ([c_void_p, c_int, c_uint64, c_uint64, c_int], None),
    "epemu_unregister": ([c_void_p, c_int, c_uint64, c_uint64], None),
    "epemu_prepare_thread": ([], None),
    "epemu_run": ([c_void_p, POINTER(c_int64)], c_int),
    "epemu_stop": ([c_void_p], None),
    "epemu_drain_network": ([c_void_p], None),
    "epemu_break_link": ([c_void_p, c_int, c_int], None),
    "epemu_stall_link": ([c_void_p, c_int, c_int, c_uint64, c_uint64], None),
    "epemu_delay_message": ([c_void_p, c_int, c_int, c_uint64, c_uint64], None),
    "epemu_stop_rank": ([c_void_p, c_int, c_uint64], None),
    "epemu_rank_stopped": ([c_void_p, c_int], c_int),
    "epemu_most_resident_blocks": ([c_void_p], c_uint64),
    "epemu_in_flight": ([c_void_p], c_uint64),
    "epemu_steps": ([c_void_p], c_uint64),
    "epemu_pct_depth": ([c_uint64], c_int),
    "epemu_report": ([c_void_p], c_char_p),
    "epemu_other_values": ([c_void_p], c_char_p),
    "epemu_num_other_values": ([c_void_p], c_uint64),
    "epemu_take_output": ([c_void_p, c_char_p, c_size_t], c_size_t),
    "epemu_check_begin": ([c_void_p, c_int, c_int], c_int),
    "epemu_check_end": ([c_void_p], None),
    "epemu_check_keep_accesses": ([c_void_p, c_uint64], None),
    "epemu_check_accesses": ([c_void_p, POINTER(c_uint64)], c_void_p),
    "epemu_check_unwritten": ([c_void_p, c_uint64, c_uint64], None),
    "epemu_record_begin": ([c_void_p, c_uint64, c_int], None),
    "epemu_record_events": ([c_void_p, POINTER(c_uint64)], c_void_p),
    "epemu_record_info": ([c_void_p], c_char_p),
    "epemu_host_sync": ([c_void_p, c_int, c_int64], None),
    "epemu_host_access": ([c_void_p, c_int, c_uint64, c_uint64, c_int, c_char_p], None),
    "epemu_time_begin": ([c_void_p, c_void_p], None),
    "epemu_time_spans": ([c_void_p, POINTER(c_uint64)], c_void_p),
    "epemu_time_messages": ([c_void_p, POINTER(c_uint64)], c_void_p),
    "epemu_time_samples": ([c_void_p, POINTER(c_uint64)], c_void_p),
    "epemu_time_name": ([c_void_p, c_int], c_char_p),
    "epemu_image_path": ([c_void_p, c_int], c_char_p),
    "epemu_time_host": ([c_void_p, c_int, c_int64], None),
    "epemu_explore_create": ([POINTER(Bounds)], c_void_p),
    "epemu_explore_destroy": ([c_void_p], None),
    "epemu_explore_begin": ([c_void_p, c_void_p], None),
    "epemu_explore_next": ([c_void_p], c_int),
    "epemu_explore_status": ([c_void_p, POINTER(ExplorationStatus)], None),
    "epemu_explore_only": ([c_void_p, c_char_p], None),
    "epemu_explore_launched": ([c_void_p], c_char_p),
    "epemu_explore_follow": ([c_void_p, c_char_p], None),
    "epemu_explore_draw": ([c_void_p, c_uint64], None),
    "epemu_explore_schedule": ([c_void_p], c_char_p),
    "epemu_explore_load": ([c_void_p, c_char_p], None),
    "epemu_explore_save": ([c_void_p], c_char_p),
    "epemu_explore_strayed": ([c_void_p], c_char_p),
    "epemu_polls": ([c_void_p], c_char_p),
    "epemu_clocks": ([c_void_p], c_char_p),
    "epemu_choices": ([c_void_p], c_char_p),
    "epemu_quiescence": ([c_void_p], c_char_p),
    "epemu_findings": ([c_void_p], c_char_p),
    "epemu_take_no_memory": ([], c_int),
}


def require_memory(library: ctypes.CDLL) -> None:
    """Raises BackendUnavailable if a call since the last check ran out of memory."""
    if library.epemu_take_no_memory():
        raise BackendUnavailable(
            "the emulator found no memory for its own data: use fewer ranks, threads or seeds, end other programs, or "
            "raise the limit of `ulimit -v`"
        )


def _checked(library: ctypes.CDLL, result: Any, function: Any, arguments: Any) -> Any:
    require_memory(library)
    return result


_NEED_NO_MEMORY = (
    "epemu_symbol",
    "epemu_error",
    "epemu_done_ticket",
    "epemu_in_flight",
    "epemu_machine_heap",
    "epemu_rank_stopped",
    "epemu_link_ended",
    "epemu_take_no_memory",
    "epemu_num_other_values",
    "epemu_take_output",
)
# Machine.launch, or the next call of another function, reports lack of memory
_OFTEN = ("epemu_launch", "epemu_register", "epemu_unregister")


@functools.cache
def load() -> ctypes.CDLL:
    """The runtime, compiled on first use (a few seconds) and cached after that."""
    path = runtime_library.build_runtime()
    try:
        library = ctypes.CDLL(str(path))
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = result
            if name not in (*_NEED_NO_MEMORY, *_OFTEN):
                function.errcheck = functools.partial(_checked, library)
    except (OSError, AttributeError) as error:  # made by gcc in place of g++, for example
        raise BackendUnavailable(
            f"the emulator, as compiled by {toolkit.find_compiler().path}, cannot be loaded ({error}): is that a C++ "
            f"compiler for this machine? EP_LIB_CXX names another"
        ) from error
    return library
