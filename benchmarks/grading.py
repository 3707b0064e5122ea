"""How long grading takes, and whether points depend on what else happens: on a busy machine, beside hostile answers.

    python benchmarks/grading.py class                      # seconds per exercise; what a class of 100 would take
    python benchmarks/grading.py hostile                    # the same points alone and among answers that do harm
    python benchmarks/grading.py share --cgroup DIR         # the solution, graded with a part of a core, 20 times

``share`` moves itself into a cgroup that you have made and limited, as root:

    mkdir /sys/fs/cgroup/cpu/tenth && cd /sys/fs/cgroup/cpu/tenth       # version 1; in version 2 it is cpu.max
    echo 100000 > cpu.cfs_period_us && echo 10000 > cpu.cfs_quota_us    # 10 ms of CPU time in each 100 ms
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from grader_answers import submission

from ep_lib.processes import descendants
from ep_lib.workshop import exercises
from ep_lib.workshop.classroom import marking
from ep_lib.workshop.classroom.executors import open_executor
from ep_lib.workshop.grader.grading import prepare

SEED = 1  # of the tests' inputs, so that gradings can be compared
CLASS = 100, 23  # learners, exercises
# Answers of tests/grader_answers/01_write_signal.cuh that harm others, if they can.
HOSTILE = (
    "wrong_fork_bomb",
    "wrong_memory_hog",
    "wrong_endless_loop",
    "wrong_forges_results",
    "wrong_blinds_the_checker",
    "wrong_exits",
)


def job(learner: str, name: str, answer: str = "") -> marking.Job:
    """The solution, or one of the wrong answers that the grader is tested with."""
    exercise = exercises.find(name)
    with tempfile.TemporaryDirectory() as folder:
        place = submission(exercise, answer, Path(folder)) if answer else exercise.solution_dir
        files = {piece: (place / piece).read_bytes() for piece in exercise.pieces}
    return marking.Job(learner, exercise.name, files, seed=SEED)


def points(result: marking.Result) -> str:
    record = result.record
    return record.get("error") or " ".join(f"{each['task']}:{each['points']}" for each in record["tasks"])


def graded(jobs: list[marking.Job], at_a_time: int) -> tuple[dict[str, marking.Result], float]:
    """The results by learner and exercise, and the seconds that all of them took."""
    for name in {each.exercise for each in jobs}:
        prepare(exercises.find(name))
    began = time.monotonic()
    with open_executor("threads", at_a_time) as found:
        assert found is not None
        results = {f"{each.job.learner} {each.job.exercise}": each for each in marking.run(jobs, *found)}
    return results, time.monotonic() - began


def of_a_class(options: argparse.Namespace) -> None:
    names = options.exercises or exercises.names()
    jobs = [job(f"learner {number}", name) for name in names for number in range(options.learners)]
    results, seconds = graded(jobs, options.jobs)
    for name in names:
        took = [each.record["seconds"] for each in results.values() if each.job.exercise == exercises.find(name).name]
        print(f"{name:<18} median {statistics.median(took):5.1f} s, longest {max(took):5.1f} s")
    took = [each.record["seconds"] for each in results.values()]
    learners, tasks = CLASS
    print(f"all: {len(jobs)} gradings in {seconds:.0f} s, {options.jobs} at a time")
    print(f"one: median {statistics.median(took):.1f} s, longest {max(took):.1f} s")
    print(
        f"{learners} learners x {tasks} exercises at this rate: {learners * tasks * seconds / len(jobs) / 60:.0f} min"
    )
    print(f"full points: {sum(each.record['full'] for each in results.values())} of {len(jobs)}")


def beside_hostile_ones(options: argparse.Namespace) -> None:
    honest = {"right": "", "partly right": "wrong_no_credit", "other way": "right_by_hand"}
    alone = {name: points(work) for name in honest for work in graded([job(name, "01", honest[name])], 1)[0].values()}
    jobs = [job(f"hostile {number}", "01", answer) for number, answer in enumerate(HOSTILE * options.times)]
    step = max(1, len(jobs) // len(honest))
    for place, name in enumerate(honest):
        jobs.insert(place * step + step // 2, job(name, "01", honest[name]))
    results, seconds = graded(jobs, options.jobs)
    print(f"{len(jobs)} gradings in {seconds:.0f} s, {options.jobs} at a time")
    for name, before in alone.items():
        among = points(results[f"{name} 01_write_signal"])
        print(f"{name:<14} alone {before}   among hostile ones {among}   {'equal' if among == before else 'DIFFERENT'}")
    for number, answer in enumerate(HOSTILE):
        record = results[f"hostile {number} 01_write_signal"].record
        print(f"{answer:<26} {record.get('points', record.get('error'))} points, {record.get('seconds', 0):.1f} s")
    print(f"processes that are left: {len(descendants(os.getpid()))}")


def with_a_part_of_a_core(options: argparse.Namespace) -> None:
    for name in options.exercises or ["08_packets"]:
        prepare(exercises.find(name))
        (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
        found, took = [], []
        for _ in range(options.times):
            began = time.monotonic()
            results, _ = graded([job("the solution", name)], 1)
            took.append(time.monotonic() - began)
            found += [points(each) for each in results.values()]
            print(f"{name}: {found[-1]} ({took[-1]:.0f} s)", flush=True)
        full = " ".join(f"{task.number}:{task.points}" for task in exercises.find(name).tasks)
        print(f"{name}: full points {found.count(full)} of {len(found)}, median {statistics.median(took):.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("class", "hostile", "share"))
    parser.add_argument("exercises", nargs="*", help="which exercises (default: all; for share: 08_packets)")
    parser.add_argument("--learners", type=int, default=8, help="in a class (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="gradings at a time (default: %(default)s)"
    )
    parser.add_argument("--times", type=int, default=20, help="for share: gradings; for hostile: of each (20)")
    parser.add_argument("--cgroup", type=Path, help="for share: the folder of the cgroup")
    options = parser.parse_args()
    if options.what == "class":
        of_a_class(options)
    elif options.what == "hostile":
        beside_hostile_ones(options)
    elif options.cgroup is None:
        parser.error("share needs --cgroup")
    else:
        with_a_part_of_a_core(options)


if __name__ == "__main__":
    main()
