"""`pip install` by uv, in a third of the time; by pip where uv is not to be had, or cannot do what pip was told to.

The words are those that both know: --constraint FILE, --extra-index-url ADDRESS, --editable REQUIREMENT. uv looks for
packages where pip's files and PIP_* say, and takes all these places as one, as pip does.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = Path(sys.executable).with_name("uv")
PLACES = ("index-url", "extra-index-url", "find-links")  # of one word or several, and called so by uv, too
# fmt: off
ONLY_PIPS = (  # how pip tells and tries, not what it installs
    "disable-pip-version-check", "timeout", "default-timeout", "retries", "progress-bar", "no-color", "quiet",
    "verbose", "root-user-action", "require-virtualenv", "no-compile", "config-file",
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
        elif option in PLACES:
            options += [word for place in value.split() for word in (f"--{option}", place)]
        else:
            return None
    return options


def by_uv(words: list[str]) -> bool:
    """Whether uv has installed it all."""
    listing = subprocess.run(
        [*PIP, "config", "list"],
        env={**os.environ, "PIP_QUIET": "0"},  # a quiet pip lists nothing
        capture_output=True,
        text=True,
        check=True,
    )
    options = uv_options(listing.stdout)
    if options is not None and not UV.exists():
        subprocess.run([*PIP, "install", "--quiet", "--no-compile", "uv>=0.9"], capture_output=True, check=False)
    if options is None or not UV.exists():
        return False
    command = [str(UV), "pip", "install", "--python", sys.executable, "--index-strategy", "unsafe-best-match"]
    if os.environ.get("PIP_QUIET", "0") != "0":
        command.append("--quiet")
    done = subprocess.run([*command, *options, *words], env={"UV_SYSTEM_CERTS": "1", **os.environ}, check=False)
    if done.returncode != 0:
        print("uv could not install this; pip tries.", flush=True)
    return done.returncode == 0


def main() -> int:
    words = sys.argv[1:]
    try:
        return 0 if by_uv(words) else subprocess.run([*PIP, "install", "--no-compile", *words], check=False).returncode
    except KeyboardInterrupt:
        return 130  # uv and pip were interrupted, too, and have said so


if __name__ == "__main__":
    raise SystemExit(main())
