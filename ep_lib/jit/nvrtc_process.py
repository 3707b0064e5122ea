"""One compilation by NVRTC in a separate process, which can be killed and cannot damage ours.

Started as a script, it imports nothing of ep_lib: a question costs little more than NVRTC's own time. It reads the
question from stdin and writes the answer to stdout, both as JSON, and the code to a file.

NVRTC's interface: https://docs.nvidia.com/cuda/nvrtc/
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import TypedDict


class Question(TypedDict):
    """``libraries``: what to load, in order, NVRTC last; ``empty``: headers without a line; ``code``: "CUBIN" or "PTX",
    written to ``file``."""

    libraries: list[str]
    source: str
    path: str
    names: list[str]
    flags: list[str]
    empty: list[str]
    code: str
    file: str


class Answer(TypedDict):
    """``status``: the name of NVRTC's error, "" for none; ``lowered``: the symbols of the requested names."""

    status: str
    log: str
    lowered: list[str]


class _Nvrtc:
    def __init__(self, libraries: list[str]) -> None:
        self.lib = [ctypes.CDLL(library, ctypes.RTLD_GLOBAL) for library in libraries][-1]
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def status(self, result: int) -> str:
        return self.lib.nvrtcGetErrorString(result).decode() if result else ""

    def call(self, name: str, *arguments: object) -> None:
        if status := self.status(getattr(self.lib, name)(*arguments)):
            raise RuntimeError(f"{name}: {status}")

    def read(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw[: size.value]

    def answer(self, question: Question) -> Answer:
        program = ctypes.c_void_p()
        source, path = (os.fsencode(question[key]) for key in ("source", "path"))
        empty = [os.fsencode(name) for name in question["empty"]]
        texts, named = ((ctypes.c_char_p * len(empty))(*each) for each in ([b""] * len(empty), empty))
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, path, len(empty), texts, named)
        names = [name.encode() for name in question["names"]]
        for name in names:
            self.call("nvrtcAddNameExpression", program, name)
        flags = [os.fsencode(flag) for flag in question["flags"]]
        result = self.lib.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        log = self.read("ProgramLog", program).decode(errors="replace").strip("\0\n ")
        lowered = []
        if result == 0:
            with open(question["file"], "wb") as file:  # noqa: PTH123 - importing pathlib is slow
                file.write(self.read(question["code"], program))
            for name in names:
                symbol = ctypes.c_char_p()
                self.call("nvrtcGetLoweredName", program, name, ctypes.byref(symbol))
                lowered.append((symbol.value or b"").decode())
        return {"status": self.status(result), "log": log, "lowered": lowered}


if __name__ == "__main__":
    asked: Question = json.load(sys.stdin)
    json.dump(_Nvrtc(asked["libraries"]).answer(asked), sys.stdout)
