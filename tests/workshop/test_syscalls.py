"""The table of system calls that a submission may not make, and the filter that is made of it."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from ep_lib.workshop.grader.process import syscalls

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOWED, REFUSED, NOT_THERE = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
MARKS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *arguments: int, mark: int | None = None) -> int:
    """What the filter says of a call, by going through its instructions as the kernel does."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, MARKS[machine] if mark is None else mark, 0, *words)
    program, at, held = [struct.unpack("=HBBI", step) for step in syscalls.program(machine)], 0, 0
    while True:
        what, if_true, if_false, value = program[at]
        at += 1
        if what == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif what == 0x54:
            held &= value
        elif what == 0x15:
            at += if_true if held == value else if_false
        elif what == 0x35:
            at += if_true if held >= value else if_false
        else:
            assert what == 0x06
            return value


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not here")
    text = HEADERS[machine].read_text()
    real = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    column = syscalls.MACHINES.index(machine)
    table = {
        **syscalls.REFUSED,
        **syscalls.NOT_THERE,
        **{name: each.numbers for name, each in syscalls.ARGUMENTS},
    }
    ours = {name: numbers[column] for name, numbers in table.items()}
    newer = [name for name in ours if name not in real and (ours[name] or 0) > max(real.values())]
    assert ours == {name: real.get(name) for name in ours} | {name: ours[name] for name in newer}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_each_refused_call_is_refused_and_others_pass(machine: str) -> None:
    column = syscalls.MACHINES.index(machine)
    refused = {numbers[column] for numbers in syscalls.REFUSED.values()} - {None}
    by_argument = {each.numbers[column] for _, each in syscalls.ARGUMENTS}
    seen = {number: verdict(machine, number) for number in range(600) if number not in by_argument}
    assert {number for number, what in seen.items() if what == REFUSED} == refused
    assert {number for number, what in seen.items() if what == NOT_THERE} == {435, *range(470, 600)}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_some_calls_are_refused_by_an_argument(machine: str) -> None:
    numbers = {name: each.numbers[syscalls.MACHINES.index(machine)] for name, each in syscalls.ARGUMENTS}
    cases = {
        ("prlimit64", 0): ALLOWED,
        ("prlimit64", 1234): REFUSED,
        ("sched_setaffinity", 1): REFUSED,
        ("clone", 17): ALLOWED,
        ("clone", 0x10000000 | 17): REFUSED,  # a user namespace
        ("mmap", 0, 4096, 3, 0x22): ALLOWED,
        ("mmap", 0, 4096, 3, 0x21): REFUSED,
        ("mmap", 0, 4096, 3, 0x23): REFUSED,  # MAP_SHARED_VALIDATE
        ("mmap", 0, 4096, 3, 0x01): ALLOWED,  # of a file
        ("fcntl", 0, 1030): ALLOWED,
        ("fcntl", 0, 8): REFUSED,
        ("socketpair", 1, 0x80801): ALLOWED,  # of Unix, a stream that is closed on exec and does not block
        ("socketpair", 1, 2): REFUSED,  # datagrams, which go to any address
        ("socketpair", 2, 1): REFUSED,
    }
    for (name, *arguments), expected in cases.items():
        number = numbers[name]
        assert number is not None
        assert verdict(machine, number, *arguments) == expected, (name, arguments)


def test_calls_of_another_architecture_and_of_x32_fail() -> None:
    assert verdict("x86_64", 1, mark=0x40000003) == REFUSED  # 32 bits
    assert verdict("x86_64", 0x40000001) == NOT_THERE
