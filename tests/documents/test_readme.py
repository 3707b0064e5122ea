"""What README.md and the pages behind its doors name, exists: commands, files, links."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

import pytest
from support import ROOT

from ep_lib import cli

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/learners.md", "docs/engineers.md"]


def commands() -> list[str]:
    """Every command line in shell blocks and in `backquotes` that begins with make or ep-lib."""
    found = [
        line.split("#")[0].strip()
        for document in DOCUMENTS
        for text in re.findall(r"^```sh\n(.*?)^```$", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)
        for line in text.splitlines()
    ]
    for document in DOCUMENTS:
        found += re.findall(r"`((?:make|ep-lib)(?: [^`\n]+)?)`", (ROOT / document).read_text(encoding="utf-8"))
    return sorted({line for line in found if line})


def test_make_targets_exist() -> None:
    lines = [re.sub(r"=<[^>]*>", "=address", command) for command in commands() if command.startswith("make ")]
    words = {word for line in lines for word in line.split()[1:]}
    done = subprocess.run(["make", "-n", *sorted(words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("ep-lib ")])
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    cli.build_parser(words[0]).parse_args(words)


def test_the_first_screen_says_what_for_whom_and_the_two_commands() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n---\n")[0]
    assert len(first.splitlines()) < 35
    for words in ("workshop", "library", "make lab", "make test", "no GPU", "learners", "instructors", "engineers"):
        assert words in first


def test_files_and_links_exist() -> None:
    missing = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        named = re.findall(
            r"`((?:ep_lib|tests|notebooks|exercises|solutions|tutorial_kernels|benchmarks|\.ci)/[\w./-]*)`", text
        )
        named += re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text)
        named = [name for name in named if "NN" not in name and not (ROOT / name).exists()]
        missing += [f"{document}: {name}" for name in named if not ((ROOT / document).parent / name).exists()]
    assert missing == []


def test_notebooks_in_the_table_are_those_that_exist() -> None:
    listed = set(re.findall(r"^\| `(\d\db?_\w+)` \|", (ROOT / "docs/learners.md").read_text("utf-8"), re.MULTILINE))
    assert listed == {path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}


def test_settings_are_documented_where_the_readme_says() -> None:
    assert "EP_LIB_CACHE_DIR" in (ROOT / "ep_lib/config.py").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_no_command_has_the_secret_among_its_words() -> None:
    """Every user of a machine can read the words of all commands, though only their owner the environment."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path.name] = "\n".join("".join(cell["source"]) for cell in cells)
    assert "EP_LIB_SECRET" in texts["multinode.md"]
    given = re.compile(r"^.*EP_LIB_SECRET(?:=| +(?=\S*(?:\.\.\.|\$))).*$", re.MULTILINE)
    from_a_file = re.compile(r'export (?:[A-Z_]+=\S+ )*EP_LIB_SECRET="\$\(cat [^)]+\)"')
    lines = [(name, line) for name, text in texts.items() for line in given.findall(text)]
    assert lines and [each for each in lines if not from_a_file.match(each[1])] == []
