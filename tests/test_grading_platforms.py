"""What docs/ offers for Gradescope and GitHub Classroom is what those platforms read."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ep_lib import cli
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader import Grade, TaskGrade

DOCS = Path(__file__).resolve().parents[1] / "docs"
GRADESCOPE = DOCS / "grading" / "gradescope"
to_results = runpy.run_path(str(GRADESCOPE / "to_results.py"))["results"]


def a_record(**changes: Any) -> dict[str, Any]:
    exercise = find("01")
    tasks = [
        TaskGrade(task, task.number != 5, "" if task.number != 5 else "it holds", "why") for task in exercise.tasks
    ]
    grade = Grade(exercise, Path("mine"), tuple(tasks), 3.2, seed=1)
    return {**grade.as_json(), "not_enforced": [], **changes}


def test_each_task_is_a_test_of_gradescope(tmp_path: Path) -> None:
    (tmp_path / "grade.json").write_text(json.dumps([a_record(flags=["look at this"])]))
    command = [sys.executable, str(GRADESCOPE / "to_results.py"), "grade.json", "results.json"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = json.loads((tmp_path / "results.json").read_text())
    *tasks, hidden = found["tests"]
    assert [each["score"] for each in tasks] == [2, 2, 2, 2, 0]
    assert sum(each["max_score"] for each in tasks) == find("01").points
    assert [each["status"] for each in tasks] == ["passed"] * 4 + ["failed"]
    assert tasks[-1]["output"] == "it holds\nwhy" and {each["visibility"] for each in tasks} == {"visible"}
    assert hidden["visibility"] == "hidden" and hidden["output"] == "look at this" and "score" not in hidden


def test_what_was_not_graded_has_no_score() -> None:
    found = to_results({"schema": 1, "exercise": "01_write_signal", "error": "not graded: machine too busy"})
    assert found["tests"] == [] and "score" not in found and "machine too busy" in found["output"]
    broken = to_results(a_record(problem="x.cuh:3: expected ;"))
    assert broken["output"] == "x.cuh:3: expected ;"


@pytest.mark.parametrize("script", ["setup.sh", "run_autograder"])
def test_the_scripts_are_shell_and_call_what_there_is(script: str) -> None:
    text = (GRADESCOPE / script).read_text()
    subprocess.run(["sh", "-n", str(GRADESCOPE / script)], check=True)
    assert text.startswith("#!/bin/sh\n") and (GRADESCOPE / script).stat().st_mode & 0o111
    for line in text.splitlines():
        if "ep-lib grade" in line:
            words = shlex.split(line.partition(">")[0].replace("$EXERCISE", "01"))
            options = cli.build_parser("grade").parse_args(words[1:])
            assert options.all and options.json and find(options.exercise)


def test_the_workflow_runs_the_public_checks_and_reports_each() -> None:
    found = yaml.safe_load((DOCS / "grading" / "classroom.yml").read_text())
    (job,) = found["jobs"].values()
    graders = {step["id"]: step["with"] for step in job["steps"] if "command-grader" in step.get("uses", "")}
    reporter = job["steps"][-1]
    assert set(reporter["with"]["runners"].split(",")) == set(graders)
    assert reporter["env"] == {f"{each.upper()}_RESULTS": f"${{{{ steps.{each}.outputs.result }}}}" for each in graders}
    for each in graders.values():
        program = shlex.split(each["command"])
        assert program[:2] == ["python", "-c"] and compile(program[2], "classroom.yml", "exec")
        assert any(name in each["command"] for name in names())
        assert "hidden" not in each["command"], "what a learner's repository runs, a learner can read"


def test_each_command_of_the_instructors_guide_exists() -> None:
    for page in ("instructor.md", "containers.md", "release.md"):
        for line in (DOCS / page).read_text().splitlines():
            words = line.removeprefix("$ ").partition("#")[0].split()
            if words[:2] in (["ep-lib", "grade"], ["ep-lib", "release"]):
                cli.build_parser(words[1]).parse_args(shlex.split(line.removeprefix("$ "), comments=True)[1:])
