"""Walls around a submission that Linux itself enforces, without root: Landlock, seccomp, and a supervisor.

A process that called :func:`confine`, and its children, can open only the allowed files, cannot change a file's mode
and time, cannot connect, and cannot signal outside processes. :func:`missing` names walls that this machine's kernel
cannot enforce.

Landlock (Linux 5.13; TCP since 6.7, signals since 6.12): https://docs.kernel.org/userspace-api/landlock.html
Seccomp filters: :mod:`ep_lib.workshop.grader.process.syscalls`. No wall hides the existence and size of a file.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ep_lib.workshop.grader.process import syscalls

_libc = ctypes.CDLL(None, use_errno=True)

# ---- Landlock's numbers, as in linux/landlock.h ----------------------------------------------------------------------
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = (1 << bit for bit in (0, 1, 2, 3, 14, 15))
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BITS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # number of rights on files in each version
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals
_TRUNCATE_SINCE, _TCP_SINCE, _SCOPES_SINCE = 3, 4, 6

# ---- prctl and seccomp -----------------------------------------------------------------------------------------------
_SET_SECCOMP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 22, 36, 38
_FILTER_MODE = 2
_DROP_FROM_BOUNDING_SET = 24
_CAPGET, _CAPSET = (125, 126) if platform.machine() == "x86_64" else (90, 91)
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 40
_KEPT = 1 << 1 | 1 << 3  # CAP_DAC_OVERRIDE, CAP_FOWNER


@cache
def _landlock_abi() -> int:
    """The version of Landlock that this machine enforces; 0: none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def _has_seccomp() -> bool:
    return platform.machine() in syscalls.MACHINES and Path("/proc/sys/kernel/seccomp/actions_avail").is_file()


def missing() -> tuple[str, ...]:
    """The walls that this machine cannot enforce, a sentence each; empty if it enforces all."""
    abi = _landlock_abi()
    lines = []
    if abi == 0:
        lines.append(
            "a submission can read and write what you can: this Linux has no Landlock (5.13 or later, enabled)"
        )
    if not _has_seccomp():
        lines.append(
            "a submission can use the network, change limits and priorities of your other processes, and modes and "
            f"times of your files: that takes seccomp filters of Linux on {' or '.join(syscalls.MACHINES)}"
        )
    if 0 < abi < _TRUNCATE_SINCE:
        lines.append("a submission can empty files that you may write to: to keep it from that takes Linux 6.2")
    if abi < _SCOPES_SINCE:
        lines.append("a submission can send signals to your other processes: that takes Landlock of Linux 6.12")
    return tuple(lines)


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that no daemon escapes it."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def confine(*, readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = ()) -> None:
    """Sets up walls for this process and its children, permanently; call it before starting threads.

    ``readable``: files and folders that it may read and execute; ``writable``: read and change; ``listable``: folders
    whose entries it may list, but not open. Missing paths are skipped. Raises OSError if a wall that :func:`missing`
    does not name cannot be built.
    """
    _prctl(_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    if _landlock_abi():
        _landlock(readable, writable, listable)
    if _has_seccomp():
        _seccomp()


def confine_further(*, readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = ()) -> None:
    """Sets up walls between this process and others behind the same walls of :func:`confine`, permanently."""
    if _landlock_abi():
        _landlock(readable, writable, listable)


def beneath(root: Path, without: Iterable[Path]) -> Iterator[Path]:
    """Files and folders that together cover ``root`` except ``without``, existing or not."""
    if root.is_symlink():
        return  # the link's target is listed separately, or not included
    inside = [path for path in without if path == root or root in path.parents]
    if not inside:
        yield root
    elif root not in inside:
        for entry in sorted(root.iterdir()):
            yield from beneath(entry, inside)


def _drop_capabilities() -> None:
    """Drops root's capabilities, except opening other users' files that the walls allow."""
    for capability in range(_LAST_CAPABILITY + 1):
        if not _KEPT >> capability & 1:
            _libc.prctl(
                _DROP_FROM_BOUNDING_SET, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3
            )  # fails if not root
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low, high = ctypes.create_string_buffer(header), ctypes.create_string_buffer(24)
    _syscall(_CAPGET, low, high)
    _, permitted, *_ = struct.unpack("=6I", high.raw)
    kept = permitted & _KEPT
    _syscall(_CAPSET, low, struct.pack("=6I", kept, kept, 0, 0, 0, 0))


def _landlock(readable: Iterable[str], writable: Iterable[str], listable: Iterable[str]) -> None:
    abi = _landlock_abi()
    files = (1 << _BITS_OF_ABI[min(abi, max(_BITS_OF_ABI))]) - 1
    attributes = [files]
    if abi >= _TCP_SINCE:
        attributes.append(_TCP)
    if abi >= _SCOPES_SINCE:
        attributes.append(_SCOPES)
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _syscall(_CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint32(0))
    try:
        for paths, rights in (
            (readable, _EXECUTE | _READ_FILE | _READ_DIR),
            (writable, files),
            (listable, _READ_DIR),
        ):
            for path in paths:
                _add_rule(ruleset, path, rights & files)
        _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        rule = struct.pack("=Qi", rights, fd)
        _syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)


def _seccomp() -> None:
    """Refuses the system calls of :mod:`ep_lib.workshop.grader.process.syscalls`."""
    program = syscalls.program()
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    _prctl(_SET_SECCOMP, _FILTER_MODE, header)


def _prctl(*words: int | bytes) -> None:
    arguments = [each if isinstance(each, bytes) else ctypes.c_ulong(each) for each in words]
    arguments += [ctypes.c_ulong(0)] * (5 - len(arguments))
    if _libc.prctl(*arguments) != 0:
        _fail("prctl")


def _syscall(*words: object) -> int:
    result = int(_libc.syscall(*words))
    if result < 0:
        _fail(f"system call {words[0]}")
    return result


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
