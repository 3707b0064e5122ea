"""What docs/ offers for Gradescope and GitHub Classroom is what those platforms read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

from ep_lib import cli, processes
from ep_lib.workshop.exercises import find, names

DOCS = ROOT / "docs"
GRADESCOPE = DOCS / "grading" / "gradescope"
EXERCISE = find("01")


def run_autograder(place: Path, submission: Path | None) -> dict[str, Any]:
    """What the example's own script says of one submission; only its paths are of this machine."""
    results, source = place / "autograder" / "results", place / "autograder" / "submission"
    results.mkdir(parents=True)
    shutil.copytree(submission, source) if submission else source.mkdir()
    text = (GRADESCOPE / "run_autograder").read_text()
    ep_lib = " ".join(map(shlex.quote, processes.python("-m", "ep_lib")))
    paths = {
        "/srv/venv/bin/ep-lib": ep_lib,
        "/srv/venv/bin/python": shlex.quote(sys.executable),
        "/srv/to_results.py": shlex.quote(str(GRADESCOPE / "to_results.py")),
        "/autograder/": f"{place}/autograder/",
        "/tmp/": f"{place}/",
    }
    text = re.sub("|".join(map(re.escape, paths)), lambda found: paths[found[0]], text)
    subprocess.run(["sh", "-c", text], cwd=place)
    found: dict[str, Any] = json.loads((results / "results.json").read_text())
    return found


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler")
def test_gradescopes_script_gives_what_the_grader_gives(tmp_path: Path) -> None:
    right = run_autograder(tmp_path / "right", EXERCISE.solution_dir)
    tasks = [each for each in right["tests"] if each["visibility"] == "visible"]
    assert [each["score"] for each in tasks] == [each["max_score"] for each in tasks] == [2, 2, 2, 2, 4]
    assert {each["status"] for each in tasks} == {"passed"} and right["output"] == ""
    (for_instructors,) = (each for each in right["tests"] if each["visibility"] == "hidden")
    assert "the course's own solution" in for_instructors["output"] and "score" not in for_instructors
    skeleton = run_autograder(tmp_path / "skeleton", EXERCISE.exercise_dir)
    tasks = [each for each in skeleton["tests"] if each["visibility"] == "visible"]
    assert [(each["score"], each["status"]) for each in tasks] == [(0, "failed")] * 5
    assert all("is still to do" in each["output"] for each in tasks)
    nothing = run_autograder(tmp_path / "nothing", None)
    (only,) = nothing["tests"]
    assert (only["name"], only["status"], nothing["score"]) == ("NOT GRADED", "failed", 0)
    assert "0 is no grade: no file ep/write_signal.cuh" in nothing["output"]


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


def test_an_image_whose_python_is_too_old_is_refused(tmp_path: Path) -> None:
    for name, does in (("apt-get", ":"), ("python3", '[ "$1" = --version ] && echo Python 3.10.12')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", GRADESCOPE / "setup.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "has Python 3.10.12: choose Ubuntu 24.04" in done.stderr
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    (least,) = re.findall(r"\((\d+), (\d+)\)", (GRADESCOPE / "setup.sh").read_text())
    assert project["requires-python"] == f">={'.'.join(least)}"


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
