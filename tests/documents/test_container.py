"""The Containerfile: read as a builder reads it, since most machines that run these tests have none.

What can be wrong without a build: an instruction or a flag that does not exist, a file, an extra or a command that the
image would not have, a base that floats, and a server that runs as root. `docker build` where there is one is
docs/containers.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from support import ROOT

from ep_lib import cli
from ep_lib.commands import lab
from ep_lib.config import Config

INSTRUCTIONS = {"FROM", "RUN", "ARG", "ENV", "COPY", "WORKDIR", "USER", "EXPOSE", "CMD"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Instruction and the rest, comments left out and continued lines joined, as the Dockerfile reference has it."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


FOUND = instructions((ROOT / "Containerfile").read_text())


def of(instruction: str) -> list[str]:
    return [rest for name, rest in FOUND if name == instruction]


def test_each_line_is_an_instruction_and_the_base_does_not_float() -> None:
    assert {name for name, _ in FOUND} <= INSTRUCTIONS
    base, start = FOUND[:2]
    assert start == ("FROM", "${BASE}") and base[0] == "ARG", "an argument can be a digest"
    matched = re.fullmatch(r"BASE=docker\.io/library/python:(\d+)\.(\d+)-slim-(\w+)", base[1])
    assert matched is not None
    python = (int(matched[1]), int(matched[2]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert least <= python
    assert [matched[3]] == ["bookworm"], "Debian 12 has g++ 12, which the emulator takes; say so of another one"


def test_what_is_installed_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pip,) = [rest for rest in of("RUN") if "pip install" in rest]
    assert '".[$EXTRAS]"' in pip and '--torch-backend "$TORCH_BACKEND"' in pip
    defaults = dict(each.split("=") for each in of("ARG"))
    assert set(defaults["EXTRAS"].split(",")) <= {name for name in extras if "cuda" not in name}
    assert defaults["TORCH_BACKEND"] == "cpu"
    constraints = set(re.findall(r"--constraint (\S+)", pip))
    assert all((ROOT / each).is_file() for each in constraints) and len(constraints) == 1
    (apt,) = [rest for rest in of("RUN") if "apt-get" in rest]
    assert "--no-install-recommends" in apt and apt.endswith("rm -rf /var/lib/apt/lists/*")
    for each in of("RUN"):
        shlex.split(each)  # raises for a quote that nothing closes


def test_nobody_is_root_when_it_runs_and_code_and_cache_are_only_read() -> None:
    names = [name for name, _ in FOUND]
    assert of("USER") == ["learner"] and "USER" not in names[: names.index("COPY")]
    assert of("COPY") == [". /course"] and any("chmod -R a+rX,go-w /course" in rest for rest in of("RUN"))
    assert "RUN" not in names[names.index("USER") :], "what is compiled is root's"
    (variable,) = of("ENV")
    name, _, value = variable.partition("=")
    assert Config.from_environment({name: value}).shared_cache == Path(value)
    assert any(f"EP_LIB_CACHE_DIR=${name}" in rest and f"chmod -R a+rX ${name}" in rest for rest in of("RUN"))


def test_the_folder_of_the_volume_is_the_learners() -> None:
    (volume,) = re.findall(r"-v ep-lib-mine:(\S+)", (ROOT / "docs" / "containers.md").read_text())
    (install,) = [shlex.split(rest.partition("&& install ")[2]) for rest in of("RUN") if "&& install " in rest]
    assert volume == install[-1] and {f"--owner={of('USER')[0]}", "--directory"} <= set(install)
    assert sum("chown" in rest or "--owner" in rest for _, rest in FOUND) == 1, "nothing else is the learner's"


def test_the_command_listens_where_the_port_is_published(tmp_path: Path) -> None:
    program, command, *options = json.loads(of("CMD")[0])
    assert (program, command) == ("ep-lib", "lab")
    parser = argparse.ArgumentParser()
    lab.add_arguments(parser)
    options = parser.parse_args(options)
    assert [str(options.port)] == of("EXPOSE")
    server = lab.server_command(tmp_path / "a.ipynb", tmp_path, port=options.port, browser=False, ip=options.ip)
    assert "--ServerApp.ip=0.0.0.0" in server
    assert cli.build_parser("lab").parse_args(["lab"]).ip == "127.0.0.1", "outside of a container it is this machine"


def test_what_stays_out_of_the_image() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "mine"} <= set(left_out), "the history has the answers, and mine/ is somebody's work"


@pytest.mark.parametrize("broken", ["RUNN apt-get update", "FROM python:latest"])
def test_the_reader_sees_what_is_wrong(broken: str) -> None:
    ((name, rest),) = instructions(f"# a comment\n{broken}\n")
    assert name not in INSTRUCTIONS or rest.endswith("latest")


def test_what_codespaces_and_binder_run_exists() -> None:
    place = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    make, target, *words = shlex.split(place["postCreateCommand"])
    makefile = (ROOT / "Makefile").read_text()
    assert make == "make" and re.search(rf"^{target}:", makefile, re.M)
    assert all(re.search(rf"^#   {word.partition('=')[0]}=", makefile, re.M) for word in words)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    build = ROOT / ".binder" / "postBuild"
    (installed,) = re.findall(r"'\.\[([\w,]+)\]'", build.read_text())
    assert set(installed.split(",")) <= set(extras) and build.stat().st_mode & 0o111
    assert {"g++", "make"} <= set((ROOT / ".binder" / "apt.txt").read_text().split())
    python = (ROOT / ".binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert f"python:{python}-" in place["image"] and f"python:{python}-" in of("ARG")[0], "one Python in all images"
