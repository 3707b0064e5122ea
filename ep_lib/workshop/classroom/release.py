"""The learner's tree of a graded course: everything for learning, without answers (`ep-lib release`).

Differences of a release:

- solutions/ keeps each exercise.toml with the tasks, but no solution. tests/ and the git history are left out.
- hidden tests: of each module only what the public checks use stays, sealed; `ep-lib grade` needs ``--tests``.
- the library's own copies of the pieces show the holes of the exercises; the code is sealed (ep_lib/jit/sealed.py), so
  that the demo and later notebooks run without a learner's piece. With ``pieces="holed"`` there is no code: a program
  that needs an unfinished piece stops, and names the task.
- instructions about points tell learners to hand in their work.
- .gitignore does not contain mine/: if a release is the template of a git classroom, learners push their work.
- the code around a learner's piece in checks, the puzzles (without solutions) and the notebooks' folded answers are
  sealed, or left out.

A seal hides answers from editors, searches and curiosity, but not from a learner who opens it on purpose: code that
runs on a machine cannot be hidden from its owner. Grades do not depend on it.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from ep_lib.errors import ArgumentError, GradingError
from ep_lib.jit import sealed
from ep_lib.require import a_path, one_of
from ep_lib.version import __version__
from ep_lib.workshop.course.generate import sealed_text, with_holes, without_markers
from ep_lib.workshop.exercises import METADATA, Exercise, find, names, workshop_root

Pieces = Literal["sealed", "holed"]
TOP = "ep-lib-course"  # the folder in an archive
_FOLDERS = (
    *(".binder", ".devcontainer", "ep_lib", "exercises", "notebooks"),
    *("tutorial_kernels", "docs", "benchmarks", "extras"),
)
_FILES = (
    *("README.md", "LICENSE", "REUSE.toml", "Makefile", "MANIFEST.in", "environment.yml", "pyproject.toml", "setup.py"),
    *("Containerfile", ".dockerignore", ".gitignore", ".ci/constraints.in", ".ci/constraints.txt"),
    *(".ci/install.py", ".ci/phase.sh", ".ci/preflight.sh"),
    "tests/kernels/nixl_guide.cu",  # a file of tutorial_kernels runs it
)
_FOR_INSTRUCTORS = (
    *("docs/instructor.md", "docs/grading", "docs/site"),
    # they contain right lines beside wrong ones
    *("benchmarks/prove.py", "benchmarks/prove_cases.py", "benchmarks/prove_docs.py"),
)
_LEFT_BY_TOOLS = {"__pycache__", ".ipynb_checkpoints", ".virtual_documents", ".ruff_cache", ".mypy_cache"}
_WORKSHOP = PurePosixPath("ep_lib/workshop")
_FOR_POINTS = re.compile(r"For points\b|.*(?:\bep-lib grade \d|\bworkshop\.grade\()", re.DOTALL)  # a paragraph
_HAND_IN = "The tests that give points are with your instructor: hand in your folder `mine/`."
_UNFOLDS = re.compile(r"<details>\s*<summary>(.*?)</summary>.*?</details>", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)[^)]*\)")  # into a file
_NOT_HERE = "The answer is with your instructor."
_KEPT_OF_A_TEST = ("BEHAVIOURS", "REHEARSED", "KERNELS", "PIECE", "IMPORTS")
_LEAST = 20  # letters, digits and underscores of an informative line
_NOT_IN_GIT = (
    # for a clone; a release may be a template, where mine/ is pushed
    b"# what learners write (workshop.start)\n/mine/\n"
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the date of files in a .zip: equal trees give equal archives


def release(to: Path | str, *, pieces: Pieces = "sealed", root: Path | None = None) -> list[str]:
    """Writes the learner's tree to a new or empty folder ``to``, or to an archive (``.zip``, ``.tar.gz``).

    Returns the names of its files. Raises ArgumentError for a folder that is not empty, or in a release, and
    GradingError without a workshop with solutions.
    """
    target = a_path("to", to)
    if sealed.in_use():
        raise ArgumentError("this is a release already: its solutions are with the instructor")
    one_of("pieces", pieces, ("sealed", "holed"))
    root = workshop_root() if root is None else root
    if not (root / "ep_lib").is_dir():
        raise GradingError(f"{root} has no ep_lib/: a release is made in a clone of the workshop, of all its files")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ArgumentError(f"{target} is there already; name a new folder, or a new archive (.zip, .tar.gz)")
    files = {path.as_posix(): data for path, data in _files(root, pieces)}
    try:
        if target.name.endswith(".zip"):
            _write_zip(target, files)
        elif target.name.endswith((".tar.gz", ".tgz")):
            _write_tar(target, files)
        else:
            _write_folder(target, files)
    except OSError as error:
        raise ArgumentError(f"{target} cannot be written: {error.strerror or error}; name another place") from error
    return sorted(files)


def _write_folder(target: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def _write_zip(target: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{TOP}/{name}", _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


def _write_tar(target: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(target, "x:gz") as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _files(root: Path, pieces: Pieces) -> Iterator[tuple[PurePosixPath, bytes]]:
    exercises = [find(name, root) for name in names(root)]
    copies = {
        PurePosixPath(exercise.runs_as) / piece: (exercise, piece)
        for exercise in exercises
        for piece in exercise.pieces
    }
    answers = answer_lines(exercises)
    course = list(_of_the_course(root))
    there = {each for path in course for each in (path, *path.parents)}
    for path in course:
        data = (root / path).read_bytes()
        if path in copies:
            yield path, _piece(*copies[path], pieces).encode()
        elif path.is_relative_to(_WORKSHOP / "hidden") and path.stem not in ("__init__", "grader"):
            yield path, _test(path, data.decode()).encode()
        elif path.is_relative_to(_WORKSHOP / "course" / "puzzles") and path.stem.startswith("nb"):
            text = without_arguments(data.decode(), "Puzzle", {"solution": '""'})
            yield path, sealed.seal(text, _header("The puzzles", "#"), python=True, whole=True).encode()
        elif path.parts[0] == "tutorial_kernels":
            yield path, _tutorial(data.decode(), answers, python=path.suffix == ".py").encode()
        elif path.suffix == ".ipynb":
            yield path, _notebook(data)
        elif path.parts[0] == "exercises" and path.suffix == ".md":
            yield path, _hand_in(data.decode()).encode()
        elif path.suffix == ".md":
            yield path, _linked(path, data.decode(), there).encode()
        elif path.name == ".gitignore":
            yield path, data.replace(_NOT_IN_GIT, b"")
        else:
            yield path, data
    said = {"version": __version__, "pieces": pieces, "exercises": [exercise.name for exercise in exercises]}
    yield PurePosixPath("ep_lib") / sealed.MARK.name, (json.dumps(said, indent=1) + "\n").encode()


def _of_the_course(root: Path) -> Iterator[PurePosixPath]:
    """Paths of the files for learners. In a git checkout only tracked files: no private notes of the instructor."""
    for path in _known(root):
        if path.parts[0] == "solutions":
            is_in = path.name == METADATA
        elif path.parts[0] in _FOLDERS:
            is_in = not any(path.is_relative_to(each) for each in _FOR_INSTRUCTORS)
        else:
            is_in = path.as_posix() in _FILES
        if is_in and (root / path).is_file() and not (root / path).is_symlink():
            yield path


def unknown_to_git(root: Path | None = None) -> list[str]:
    """Files of the course's folders that a release leaves out, since git does not track them."""
    root = workshop_root() if root is None else root
    if not (root / ".git").exists():
        return []
    return [path.as_posix() for path in _listed(root, "--others", "--exclude-standard") if path.parts[0] in _FOLDERS]


def _listed(root: Path, *options: str) -> list[PurePosixPath]:
    """The output of `git ls-files`."""
    command = ["git", "-C", str(root), "ls-files", "-z", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise GradingError(f"git cannot list the files of {root}: {error.stderr.strip()}") from error
    except OSError as error:
        raise GradingError(f"git cannot list the files of {root}: {error}; install git") from error
    return [PurePosixPath(name) for name in sorted(filter(None, done.stdout.split("\0")))]


def _known(root: Path) -> list[PurePosixPath]:
    if (root / ".git").exists():
        return _listed(root)
    folders = ("solutions", *_FOLDERS)
    found = [path for folder in folders for path in (root / folder).rglob("*") if not _LEFT_BY_TOOLS & set(path.parts)]
    found += [root / name for name in _FILES]
    return sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in found if path.is_file())


def _piece(exercise: Exercise, piece: str, pieces: Pieces) -> str:
    """The file in the library in place of a piece."""
    text = (exercise.solution_dir / piece).read_text(encoding="utf-8")
    shown, _ = with_holes(exercise, piece, text)
    if pieces == "holed":
        return shown
    python = piece.endswith(".py")
    return sealed.seal(without_markers(text) if python else sealed_text(exercise, text), shown, python=python)


def _linked(page: PurePosixPath, text: str, there: Collection[PurePosixPath]) -> str:
    """A page without its links to what a release leaves out."""

    def link(match: re.Match[str]) -> str:
        return match[0] if PurePosixPath(os.path.normpath(page.parent / match[2])) in there else match[1]

    return _LINK.sub(link, text)


def _test(path: PurePosixPath, text: str) -> str:
    """A file of the hidden tests: the parts that public checks need, sealed, since they contain answers."""
    python = path.suffix == ".py"
    if python and path.stem.startswith("ex"):
        text = reached_from(text, _KEPT_OF_A_TEST)
    shown = _header("A part of the public checks", "#" if python else "//")
    if not python:  # compilers search the visible text for includes
        shown += "".join(line for line in text.splitlines(keepends=True) if line.startswith("#include"))
    return sealed.seal(text, shown, python=python, whole=True)


def _tutorial(text: str, answers: frozenset[str], *, python: bool) -> str:
    """A tutorial file with mistakes, without the lines that the right answer also has."""
    comment = "#" if python else "//"
    lines = [
        f"{line[: len(line) - len(line.lstrip())]}{comment} as in the right one, which is yours to write"
        if said(line) in answers
        else line
        for line in text.splitlines()
    ]
    shown = "\n".join(lines) + "\n"
    return text if shown == text else sealed.seal(text, shown, python=python, whole=True)


def answer_lines(exercises: Sequence[Exercise]) -> frozenset[str]:
    """The lines that learners write, without lines that an exercise gives, and without uninformative ones."""
    written, given = set(), set()
    for exercise in exercises:
        for piece in exercise.pieces:
            text = (exercise.solution_dir / piece).read_text(encoding="utf-8")
            given |= {said(line) for line in with_holes(exercise, piece, text)[0].splitlines()}
            written |= {said(line) for line in without_markers(text).splitlines()}
    return frozenset(line for line in written - given if len(re.findall(r"\w", line)) >= _LEAST)


def said(line: str) -> str:
    """A line of code without its comment and indentation."""
    return re.sub(r"\s*(?://|# |#$).*", "", " ".join(line.split()))


def _header(what: str, comment: str) -> str:
    return f"{comment} {what}, sealed by `ep-lib release`: see docs/release.md.\n"


def _notebook(data: bytes) -> bytes:
    """A notebook without outputs, folded answers, and the grader's commands."""
    notebook = json.loads(data)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            continue
        text = _UNFOLDS.sub(rf"<details><summary>\1</summary>\n\n{_NOT_HERE}\n\n</details>", "".join(cell["source"]))
        cell["source"] = _hand_in(text).splitlines(keepends=True)
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _hand_in(text: str) -> str:
    """A text whose paragraphs about points say who gives them, since a release has no grader."""
    parts: list[str] = []
    for part in text.split("\n\n"):
        said = _HAND_IN if _FOR_POINTS.match(part) else part
        if [said] != parts[-1:] or said != _HAND_IN:
            parts.append(said)
    return "\n\n".join(parts)


# ---- Python modules, cut ---------------------------------------------------------------------------------------------
def reached_from(text: str, wanted: tuple[str, ...]) -> str:
    """A module with only the top-level definitions that the ``wanted`` names need."""
    tree = ast.parse(text)
    needed, waiting = set(), list(wanted)
    kept: set[int] = set()
    uses = [({name.id for name in ast.walk(node) if isinstance(name, ast.Name)}, _defines(node)) for node in tree.body]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        for number, (used, defined) in enumerate(uses):
            if name in defined and number not in kept:
                kept.add(number)
                waiting += used
    for number, (node, (_, defined)) in enumerate(zip(tree.body, uses, strict=True)):
        if not defined and not isinstance(node, (ast.Assign, ast.AnnAssign)):
            kept.add(number)  # the docstring, imports of __future__
    tree.body = [node for number, node in enumerate(tree.body) if number in kept]
    return ast.unparse(tree) + "\n"


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return set()
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    targets = [name for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]
    return {name.id for name in targets}


def without_arguments(text: str, call: str, replaced: dict[str, str]) -> str:
    """A module in which the keyword arguments ``replaced`` of every call of ``call`` have other values."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call:
            for keyword in node.keywords:
                if keyword.arg in replaced:
                    keyword.value = ast.parse(replaced[keyword.arg], mode="eval").body
    return ast.unparse(tree) + "\n"
