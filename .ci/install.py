"""`pip install` by uv, in a third of the time; by pip where uv is not to be had, or cannot do what pip was told to.

    python .ci/install.py --constraint FILE [--extra-index-url ADDRESS] --editable REQUIREMENT
    python .ci/install.py lock FILE        pins of all that any extra needs, for every Python, to FILE

The words are those that both know. uv looks for packages where pip's files and PIP_* say, and takes all these places as
one, as pip does.
"""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = Path(sys.executable).with_name("uv")
LISTS = ("index-url", "extra-index-url", "find-links", "constraint")  # of one word or several, and called so by uv, too
# fmt: off
ONLY_PIPS = (  # how pip tells and tries, not what it installs
    "disable-pip-version-check", "timeout", "default-timeout", "retries", "progress-bar", "no-color", "quiet",
    "verbose", "root-user-action", "require-virtualenv", "no-compile", "config-file", "cache-dir", "no-cache-dir",
)
# fmt: on


def uv_options(listed: str) -> list[str] | None:
    """What `pip config list` lists, in uv's words; None if uv has none for it."""
    values: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():  # global.find-links='/a /b', install.no-index='1', :env:.timeout='60'
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", "install", ":env:") and option not in ONLY_PIPS:
            values.setdefault(option, {})[section] = str(ast.literal_eval(value))
    options = []
    for option, by_section in values.items():
        value = next(by_section[section] for section in (":env:", "install", "global") if section in by_section)
        if option == "cert":
            options += ["--cert", value]
        elif option in LISTS:
            options += [word for item in value.split() for word in (f"--{option}", item)]
        else:
            return None
    return options


def pips_options() -> list[str] | None:
    """What pip was told, in uv's words; uv is fetched if it is absent. None if uv cannot do it, or is not to be had."""
    listing = subprocess.run(
        [*PIP, "config", "list"],
        env={**os.environ, "PIP_QUIET": "0"},  # a quiet pip lists nothing
        capture_output=True,
        text=True,
        check=True,
    )
    options = uv_options(listing.stdout)
    if options is not None and not UV.exists():
        pinned = [f"--constraint={Path(__file__).with_name('constraints.txt')}", "uv"]
        subprocess.run([*PIP, "install", "--quiet", "--no-compile", *pinned], capture_output=True, check=False)
    return options if UV.exists() else None


def uv(*words: str) -> int:
    """The exit status of `uv pip` with these words."""
    command = [str(UV), "pip", *words, "--index-strategy", "unsafe-best-match"]
    if os.environ.get("PIP_QUIET", "0") != "0":
        command.append("--quiet")
    return subprocess.run(command, env={"UV_SYSTEM_CERTS": "1", **os.environ}, check=False).returncode


def by_uv(words: list[str]) -> bool:
    """Whether uv has installed it all."""
    options = pips_options()
    if options is None:
        return False
    failed = uv("install", "--python", sys.executable, *options, *words) != 0
    if failed:
        print("uv could not install this; pip tries.", flush=True)
    return not failed


def lock(target: str) -> int:
    """Writes the pins to ``target``: constraints, so that each machine takes the build of a release that fits it."""
    options = pips_options()
    if options is None:
        print("this needs uv, and a pip that is told nothing which uv cannot do")
        return 1
    places = [  # not those of one machine's disk
        word
        for name, value in zip(options[::2], options[1::2], strict=True)
        if name not in ("--find-links", "--constraint")
        for word in (name, value)
    ]
    extras = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    flags = [
        "--universal",
        "--python-version=3.11",
        *(f"--extra={extra}" for extra in extras if extra not in ("cuda12", "nixl-cu12")),  # older torch and bindings
        "--upgrade",
        "--no-annotate",
        "--no-emit-index-url",
    ]
    files = ["pyproject.toml", "--constraint", ".ci/constraints.in", "--output-file", target]
    return uv("compile", "--quiet", "--custom-compile-command", "make lock", *flags, *places, *files)


def main() -> int:
    words = sys.argv[1:]
    try:
        if words[:1] == ["lock"]:
            return lock(*words[1:])
        return 0 if by_uv(words) else subprocess.run([*PIP, "install", "--no-compile", *words], check=False).returncode
    except KeyboardInterrupt:
        return 130  # uv and pip were interrupted, too, and have said so


if __name__ == "__main__":
    raise SystemExit(main())
