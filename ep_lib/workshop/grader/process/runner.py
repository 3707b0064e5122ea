"""Runs scenarios on the emulator with the learner's piece first among the include roots. Part of the child process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ep_lib
from ep_lib.compat import ibgda
from ep_lib.memory.arrays import describe
from ep_lib.runtime.accesses import accesses_of
from ep_lib.workshop.grader.checked import checked, exhausted, told_of
from ep_lib.workshop.grader.kernels import kernel_of
from ep_lib.workshop.grader.pieces import load
from ep_lib.workshop.grader.process.far import Guest
from ep_lib.workshop.grader.process.guest import ENDLESS, Nursery, failure_of
from ep_lib.workshop.grader.scenario import (
    ANSWERS,
    MAX_HEADER_BYTES,
    Array,
    Call,
    InputWasChanged,
    Launch,
    Room,
    Scenario,
    pack,
)
from ep_lib.workshop.grader.watched import unseen_bytes

_MOST_ACCESSES = 1 << 20  # far more than in any hidden test: later writes would count as unseen
# By name and rank: an array's address, its bytes before and after.
Changed = dict[tuple[str, int], tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]


class Runner:
    """Compiles each kernel once with the pieces in ``mine``, calls Python pieces in processes of their own, and runs
    scenarios."""

    def __init__(self, mine: Path, *given: Path, nursery: Nursery | None = None) -> None:
        """``given``: folders with headers that are given to learners. ``nursery``: the source of processes for Python
        pieces."""
        self._mine = mine
        self._given = given
        self._kernels: dict[tuple[str, str], ep_lib.Kernel] = {}
        self._nursery = nursery
        self._programs: dict[str, ModuleType] = {}  # the grader's
        self._endless: list[str] = []  # functions of the piece in which calls were ended
        self._is_quiet = False

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """The reply frame for {"nonce", "compile": [(source, kernel)...], "import": [piece...]}, for
        {"nonce", "run": Scenario or Call}, or for {"nonce", "record": Scenario}. With "quiet", this process and its
        children stop printing."""
        nonce = request["nonce"]
        if request.get("quiet") and not self._is_quiet:
            nothing = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(nothing, stream)
            os.close(nothing)
            self._is_quiet = True
        try:
            if "compile" in request:
                images = [self._kernel(source, name).compile() for source, name in request["compile"]]
                looks = dict.fromkeys(f"not watched: {note}" for image in images for note in image.unwatched)
                for program in request["programs"]:
                    self._program(program)  # it may compile kernels of its own
                for piece in request["import"]:
                    with self._guests(piece) as (guest,):
                        modules = guest.imported()
                    if self._nursery is not None:
                        self._nursery.know(modules)
                return pack({"nonce": nonce, "failure": None, "looks": [*looks]})
            if "record" in request:
                return self._answer_record(nonce, request["record"])
            if isinstance(request["run"], Call):
                return pack({"nonce": nonce, "failure": None, "seen": self._called(request["run"])})
            return self._answer_run(nonce, request["run"])
        except Exception as error:  # noqa: BLE001 - the parent judges any error
            return pack({"nonce": nonce, "failure": failure_of(self._mine, error)})

    def _kernel(self, source: str, name: str) -> ep_lib.Kernel:
        key = (source, name)
        if key not in self._kernels:
            self._kernels[key] = kernel_of(Path(source), name, self._mine, self._given)
        return self._kernels[key]

    def _answer_record(self, nonce: str, scenario: Scenario) -> bytes:
        from ep_lib.workshop.grader.recorded import run_of  # rarely needed, and viz is slow to import

        return pack(
            {"nonce": nonce, "failure": None}, json.dumps(run_of(self.main(scenario), self._mine, scenario)).encode()
        )

    @contextlib.contextmanager
    def _guests(self, piece: str, count: int = 1) -> Iterator[list[Guest]]:
        """Starts the given number of processes with the piece, which is not imported yet."""
        assert self._nursery is not None, "there is no piece in Python"
        found: list[Guest] = []
        try:
            for _ in range(count):
                found.append(Guest(self._nursery, piece, self._endless, 1 / count, compiles=piece == ANSWERS))
            yield found
        finally:
            for each in found:
                each.end()
            gc.collect()  # a followed rank and its machine, with gigabytes of address space, refer to each other

    def _program(self, path: str) -> ModuleType:
        if path not in self._programs:
            self._programs[path] = load(Path(path))
        return self._programs[path]

    def _called(self, call: Call) -> Any:
        try:
            with self._guests(call.piece, call.ranks) as guests:
                for guest in guests:
                    guest.imported()
                piece: Any = guests if call.of_ranks else guests[0]
                seen = getattr(self._program(call.program), call.function)(piece, **call.arguments)
        except Exception as error:
            if type(error).__name__ == ENDLESS:
                self._endless.append(str(getattr(error, "location", "")))
            raise
        return seen if len(json.dumps(seen)) <= MAX_HEADER_BYTES // 2 else None  # a right answer never gives more

    def _answer_run(self, nonce: str, scenario: Scenario) -> bytes:
        main = self.main(scenario)
        if scenario.hardware:
            timeline = ep_lib.simulate(main, hardware=scenario.hardware, **scenario.world)
            return pack(
                {"nonce": nonce, "failure": None, "nanoseconds": 1e3 * timeline.kernel_us}, _body(timeline.results)
            )
        if scenario.exhaustive:
            return self._answer_exhausted(nonce, main, scenario)
        if not scenario.check_seeds:
            results = ep_lib.spawn(main, backend="emulator", seed=scenario.seed, **scenario.world)
            return pack({"nonce": nonce, "failure": None}, _body(results))
        arrays, findings = checked(main, scenario)
        failure, complaints = told_of(findings)
        if failure is not None:
            return pack({"nonce": nonce, "failure": failure, "complaints": complaints})
        results = [arrays[rank] for rank in range(scenario.ranks)]
        unseen, kinds = self._accesses(scenario)
        reply = {"nonce": nonce, "failure": None, "complaints": complaints, "unseen": unseen}
        return pack(reply, _body(results) + kinds)

    def _answer_exhausted(self, nonce: str, main: Callable[[ep_lib.Rank], list[Array]], scenario: Scenario) -> bytes:
        largest: dict[int, list[Array]] = {}

        def keep(rank: ep_lib.Rank) -> None:
            arrays = main(rank)
            before = largest.get(rank.rank, arrays)
            largest[rank.rank] = [np.maximum(*both) for both in zip(before, arrays, strict=True)]

        report = exhausted(keep, scenario)
        failure, complaints = told_of(report.findings)
        if failure is None and not complaints and report.coverage and not report.coverage.complete:
            message = f"not all schedules could be tried: {report.coverage}"
            failure = {"kind": "timeout", "message": message, "location": ""}
        if failure is not None:
            return pack({"nonce": nonce, "failure": failure, "complaints": complaints})
        results = [largest[rank] for rank in range(scenario.ranks)]
        return pack({"nonce": nonce, "failure": None, "complaints": complaints}, _body(results))

    def _accesses(self, scenario: Scenario) -> tuple[int, bytes]:
        """For one run under the checker: the number of bytes that change without a visible write, and the accesses to
        the scenario's ``watched`` arrays."""
        changed: Changed = {}
        main, seed = self.main(scenario, changed), scenario.check_seeds[0]
        accesses = accesses_of(main, seed=seed, most=_MOST_ACCESSES, **scenario.world)
        kinds = {name: scenario.no_accesses() for name in scenario.watched}
        for (name, owner), (address, before, _) in changed.items():
            if name in kinds:
                kinds[name][owner] = accesses.kinds(address, before.size, scenario.ranks)
        counted = b"".join(each.tobytes() for by_owner in kinds.values() for each in by_owner)
        return unseen_bytes(accesses.writes(), changed.values()), counted

    def _inputs(self, scenario: Scenario, me: int) -> set[str]:
        """The arrays of a rank's own memory that none of its kernels writes."""
        reads: dict[bool, set[str]] = {True: set(), False: set()}
        names = [*scenario.symmetric, *scenario.local]
        for launch in scenario.launched_by(me):
            params = self._kernel(scenario.source, launch.kernel).compile("emulator").params
            for name, param in zip(names, params[1:], strict=False):
                reads[param.is_const].add(name)
        return (reads[True] - reads[False]) & scenario.local.keys()

    def main(self, scenario: Scenario, changed: Changed | None = None) -> Callable[[ep_lib.Rank], list[Array]]:
        """Each rank's function in a scenario. ``changed`` receives each array's address and its bytes before and after.

        Raises InputWasChanged on a rank whose inputs have changed: a test's kernels read them by pointers to const.
        """
        inputs = [self._inputs(scenario, me) for me in range(scenario.ranks)]

        def run(rank: ep_lib.Rank, arrays: Mapping[str, Any], launches: Sequence[Launch]) -> None:
            for launch in launches:
                args = (scenario.task if launch.task is None else launch.task, *arrays.values(), *launch.args)
                self._kernel(scenario.source, launch.kernel).launch(rank, launch.grid, launch.block, *args)
            rank.synchronize()
            rank.barrier()

        def main(rank: ep_lib.Rank) -> list[Array]:
            me = rank.rank
            rng = np.random.default_rng((scenario.seed, me))
            given = {name: scenario.arrays(name)[me] for name in (*scenario.symmetric, *scenario.local)}
            first = {name: each.before(rng) if isinstance(each, Room) else each for name, each in given.items()}
            arrays: dict[str, Any] = {}
            for name, content in first.items():
                make = rank.symmetric if name in scenario.symmetric else rank.empty
                arrays[name] = make(content.shape, content.dtype)
                arrays[name][...] = content
            if scenario.shim:
                ibgda.init_efa_device_state(rank)
            rank.barrier()
            run(rank, arrays, scenario.launched_by(me))
            if scenario.afterwards:
                run(rank, arrays, scenario.afterwards)
            for name in inputs[me]:
                if arrays[name].tobytes() != first[name].tobytes():
                    raise InputWasChanged(f"your code has written into {name!r}, which the test gives to be read")
            if changed is not None:
                for name, held in arrays.items():
                    changed[name, me] = describe(held).address, _bytes(first[name]), _bytes(rank.to_host(held).copy())
            return [rank.to_host(arrays[name]).copy() for name in scenario.outputs]

        return main


def _bytes(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _body(results: list[list[Array]]) -> bytes:
    by_name = zip(*results, strict=True)
    return b"".join(np.ascontiguousarray(array).tobytes() for arrays in by_name for array in arrays)
