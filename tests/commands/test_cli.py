"""The command line: exit codes, one paragraph instead of a traceback, and settings from the environment."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

from ep_lib import cli
from ep_lib.commands import lab
from ep_lib.config import Config, parse_size
from ep_lib.errors import ArgumentError, BackendUnavailable

COMMANDS = [entry.name for entry in cli._COMMANDS if entry.exists()]


def ep_lib_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ep_lib", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ep_lib import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(sorted({'torch', 'cupy', 'matplotlib', 'mpi4py'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for name in ("doctor", "lab", *COMMANDS):
        assert re.search(rf"\n    {name}\s", done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: ep-lib {name}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["no-such-command"], ["lab", "--port", "many"], ["doctor", "--no-such-option"]])
def test_wrong_usage_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == cli.EXIT_USAGE
    assert "usage: ep-lib" in capsys.readouterr().err


def test_an_error_is_one_paragraph_and_exit_1() -> None:
    done = ep_lib_command("lab", "99_no_such_notebook", EP_LIB_DEBUG="0")
    assert done.returncode == cli.EXIT_ERROR
    assert done.stdout == ""
    assert done.stderr.startswith("ep-lib: there is no notebook '99_no_such_notebook'")
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback() -> None:
    done = ep_lib_command("lab", "99_no_such_notebook", EP_LIB_DEBUG="1")
    assert done.returncode == cli.EXIT_ERROR
    assert "Traceback" in done.stderr and "ArgumentError" in done.stderr


def test_a_bad_variable_is_named_before_the_command_runs() -> None:
    done = ep_lib_command("doctor", "--json", EP_LIB_HEAP_BYTES="much")
    assert (done.returncode, done.stdout) == (cli.EXIT_ERROR, "")
    assert "EP_LIB_HEAP_BYTES" in done.stderr and "'much'" in done.stderr


def test_a_command_that_needs_a_missing_package_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_torch(_args: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(lab, "run", no_torch)
    assert cli.main(["lab"]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert "'torch'" in said and "ep-lib doctor" in said


def test_ctrl_c_is_exit_130() -> None:
    code = (
        "import sys, time\nfrom ep_lib import cli\nfrom ep_lib.commands import lab\n"
        "def run(args):\n    print('running', flush=True)\n    time.sleep(60)\n"
        "lab.run = run\nsys.exit(cli.main(['lab']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == cli.EXIT_INTERRUPTED
    assert said == "ep-lib: interrupted\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import sys\nfrom ep_lib import cli\nfrom ep_lib.commands import lab\n"
        "lab.run = lambda args: print('line\\n' * 100_000, flush=True) or 0\nsys.exit(cli.main(['lab']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(120) == 0
    process.stderr.close()


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).parent / "ep-lib"
    if not script.exists():
        pytest.skip("ep-lib runs from a source tree that is not installed")
    done = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ep-lib ")


# ep-lib lab


def test_lab_binds_to_localhost_with_its_token(tmp_path: Path) -> None:
    notebook = tmp_path / "notebooks" / "a b.ipynb"
    command = lab.server_command(notebook, tmp_path, port=9000, browser=False)
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--ServerApp.port=9000" in command and "--no-browser" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/a%20b.ipynb" in command
    (extensions,) = (
        word.partition("=")[2] for word in command if word.startswith("--LabApp.extra_labextensions_path=")
    )
    assert json.loads((Path(extensions) / "ep-lib" / "package.json").read_text())["jupyterlab"]["_build"]
    assert (lab.SETTINGS / "jupyter_server_config.d" / "ep_lib.json").is_file()
    assert lab.server_environment()["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0] == str(lab.SETTINGS)
    assert lab.NEW_KERNEL.is_file() and lab.server_environment()["PYTHONSTARTUP"] in (
        str(lab.NEW_KERNEL),
        os.environ.get("PYTHONSTARTUP"),
    )
    assert not any("token" in word or "password" in word for word in command), "the random token stays on"


def test_lab_finds_a_notebook_by_number_stem_or_file_name(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    for name in ("00_start_here.ipynb", "01_write_and_signal.ipynb"):
        (tmp_path / "notebooks" / name).touch()
    wanted = tmp_path / "notebooks" / "01_write_and_signal.ipynb"
    for name in ("01", "01_write_and_signal", "01_write_and_signal.ipynb"):
        assert lab.find_notebook(tmp_path, name) == wanted
    with pytest.raises(ArgumentError, match="00_start_here, 01_write_and_signal"):
        lab.find_notebook(tmp_path, "1")


def test_lab_without_jupyterlab_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match="pip install 'jupyterlab"):
        lab.run(argparse.Namespace(port=8888))


# Settings


def test_settings_have_defaults() -> None:
    config = Config.from_environment({"HOME": "/somewhere"})
    assert (config.backend, config.seed, config.debug) == ("emulator", 0, False)
    assert (config.cxx, config.heap_bytes, config.timeout_s, config.workshop) == (None, None, None, None)
    assert (config.cache_dir, config.share_gpus, config.stack_bytes) == (None, False, None)


def test_settings_are_read(tmp_path: Path) -> None:
    config = Config.from_environment(
        {
            "EP_LIB_BACKEND": "cuda",
            "EP_LIB_CACHE_DIR": str(tmp_path / "kernels"),
            "EP_LIB_CXX": "clang++",
            "EP_LIB_DEBUG": "1",
            "EP_LIB_HEAP_BYTES": "512M",
            "EP_LIB_SEED": "17",
            "EP_LIB_SHARE_GPUS": "yes",
            "EP_LIB_STACK_BYTES": "64K",
            "EP_LIB_TIMEOUT_S": "2.5",
            "EP_LIB_TRANSPORT": "nvshmem:link",
            "EP_LIB_WORKSHOP": str(tmp_path),
        }
    )
    assert config == Config(
        cache_dir=tmp_path / "kernels",
        backend="cuda",
        cxx="clang++",
        debug=True,
        heap_bytes=512 * 2**20,
        seed=17,
        share_gpus=True,
        stack_bytes=64 * 2**10,
        timeout_s=2.5,
        transport="nvshmem:link",
        workshop=tmp_path,
    )


def test_empty_means_not_set() -> None:
    names = ["BACKEND", "CACHE_DIR", "CXX", "DEBUG", "HEAP_BYTES", "SEED", "SHARE_GPUS", "STACK_BYTES", "TIMEOUT_S"]
    names += ["TRANSPORT", "WORKSHOP"]
    assert Config.from_environment({f"EP_LIB_{name}": " " for name in names}) == Config.from_environment({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EP_LIB_BACKEND", "gpu"),
        ("EP_LIB_CACHE_DIR", __file__),
        ("EP_LIB_DEBUG", "perhaps"),
        ("EP_LIB_HEAP_BYTES", "0"),
        ("EP_LIB_HEAP_BYTES", "-1M"),
        ("EP_LIB_HEAP_BYTES", "12 parsecs"),
        ("EP_LIB_SEED", "-3"),
        ("EP_LIB_SEED", "1.5"),
        ("EP_LIB_SEED", str(2**63)),
        ("EP_LIB_STACK_BYTES", "4K"),
        ("EP_LIB_STACK_BYTES", "9M"),
        ("EP_LIB_TIMEOUT_S", "0"),
        ("EP_LIB_TIMEOUT_S", "nan"),
        ("EP_LIB_TIMEOUT_S", "soon"),
        ("EP_LIB_TRANSPORT", "infiniband"),
        ("EP_LIB_WORKSHOP", "/proc/self/no-such/directory"),
    ],
)
def test_a_bad_setting_names_the_variable_and_the_value(name: str, value: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Config.from_environment({name: value})
    assert name in str(error.value) and repr(value) in str(error.value)


def test_a_transport_of_the_emulator_is_no_setting_of_gpus() -> None:
    with pytest.raises(ArgumentError, match=r"'by_pair' is the emulator's: pass transport='by_pair' to ep_lib.spawn"):
        Config.from_environment({"EP_LIB_TRANSPORT": "by_pair"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("512M", 2**29),
        ("512m", 2**29),
        ("1.5G", 3 * 2**29),
        ("2 GiB", 2**31),
        ("64KB", 2**16),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_the_module_lists_every_variable_that_is_read() -> None:
    import ep_lib.config as config

    assert config.__doc__ is not None
    source = Path(config.__file__).read_text()
    read = set(re.findall(r'"(EP_LIB_\w+)"', source))
    assert read and all(name in config.__doc__ for name in read)
    internal = {"EP_LIB_GRADE_RUN"}
    elsewhere = {
        name
        for path in (ROOT / "ep_lib").rglob("*.py")
        for name in re.findall(r'environ(?:\.get\(|\[)"(EP_LIB_\w+)"', path.read_text())
    }
    assert elsewhere - internal <= read, "a variable that ep_lib/config.py does not list"
