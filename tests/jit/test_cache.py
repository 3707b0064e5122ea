"""The compile cache: what is damaged is healed, what cannot be written is said, what is old goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ep_lib import cli, processes
from ep_lib.errors import BackendUnavailable
from ep_lib.jit import cache, digest, gxx, runtime_library, toolkit, tools
from ep_lib.jit.kernel import Kernel

pytestmark = pytest.mark.slow

SOURCE = '#include <ep/platform.cuh>\nextern "C" __global__ void add(int* x, int n) { x[threadIdx.x] += n; }\n'


def _garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0x5A for byte in data[middle : middle + 64])
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncate": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "garble": _garble,
    "fill": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "remove": Path.unlink,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),  # who opens it waits
    "loop": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that begins with what every kernel needs: the emulator, and its headers."""
    Kernel.from_source(SOURCE, "add").compile()
    folder = tmp_path / "cache"
    for kind in ("runtime", "prelude", "support", "object"):
        for entry in (cache.cache_dir() / kind).glob("[!.]*"):
            shutil.copytree(entry, folder / kind / entry.name, copy_function=os.link)
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(folder))
    _as_a_new_process(monkeypatch)
    return folder


def _as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_sound", {})
    monkeypatch.setattr(digest, "_files", digest.Recent(9999))
    monkeypatch.setattr(digest, "_walks", digest.Recent(8))
    monkeypatch.setattr(digest._Store, "_loaded", {})
    toolkit._identify.cache_clear()


def _unlinked(path: Path) -> Path:
    """The file as one of its own, so that damage does not reach the cache that all tests share."""
    data, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.extended(after=6)
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *((kind, damage) for kind in ("sources", "compilers", "headers", "support", "locks") for damage in DAMAGE),
        *(("emulator", damage) for damage in ("truncate", "garble")),  # each compiles; the next test has all of them
    ],
)
def test_every_file_of_a_kernel_heals(kind: str, damage: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel.from_source(SOURCE, "add")
    before = kernel.compile()
    damaged = sorted(path for path in (own_cache / kind).rglob("*") if path.is_file())
    assert damaged
    for path in damaged:
        DAMAGE[damage](_unlinked(path))
    _as_a_new_process(monkeypatch)
    after = Kernel.from_source(SOURCE, "add").compile()
    assert after == before
    assert b"add" in after.path.read_bytes() and kernel.source_path.read_text() == SOURCE
    assert cache._is_sound(after.path.parent, "image.json")


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_file_of_an_entry_heals_and_it_is_said(
    damage: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def build(folder: Path, _: Path) -> None:
        built.append(folder)
        for name in ("first", "second"):
            (folder / name).write_bytes(name.encode() * 100)

    place = cache.entry("test", "key", "first", build)
    for number, name in enumerate(("first", "second", cache.MANIFEST), 2):
        DAMAGE[damage](place / name)
        assert cache.entry("test", "key", "first", build) == place
        assert (place / "first").read_bytes() == b"first" * 100 and len(built) == number
        assert "was damaged" in capsys.readouterr().err
    assert cache.entry("test", "key", "first", build) == place and len(built) == 4
    assert sorted(path.name for path in place.parent.iterdir()) == ["key"], "nothing half-made stays"


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prelude", "runtime", "object"])
def test_a_damaged_emulator_heals(kind: str, own_cache: Path) -> None:
    """In a process of its own: the emulator of this one is loaded already."""
    current = {
        "prelude": gxx._prelude(toolkit.find_compiler(), False),
        "runtime": runtime_library.build_runtime().parent,
    }
    if kind == "object":
        shutil.rmtree(own_cache / "runtime")
        sources = (
            file.name for file in toolkit.RUNTIME_SOURCES.glob("*.cpp")
        )  # of today: a cache may hold pieces of older sources, too
        pieces = [runtime_library._object(toolkit.find_compiler(), source) for source in sources]
        current["object"] = min(pieces, key=lambda file: file.stat().st_size).parent
    _garble(_unlinked(max((own_cache / kind / current[kind].name).iterdir(), key=lambda file: file.stat().st_size)))
    program = (
        "import sys, numpy as np, ep_lib\n"
        "kernel = ep_lib.Kernel.from_source(sys.argv[1], 'add')\n"
        "def main(rank):\n"
        "    x = rank.to_device(np.arange(4, dtype=np.int32))\n"
        "    kernel.launch(rank, 1, 4, x, 7)\n"
        "    return rank.to_host(x).tolist()\n"
        "print(ep_lib.spawn(main, 1, 'emulator'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, SOURCE], capture_output=True, text=True, check=False)
    assert done.stdout == f"{[[7, 8, 9, 10]]}\n", done.stderr
    assert "was damaged" in done.stderr


def _write(folder: Path, _: Path) -> None:
    (folder / "done").write_text("x")


@pytest.mark.parametrize("how", ["fsync", "mkdir", "rename"])
def test_a_full_disk_is_told_and_leaves_nothing(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))

    (tmp_path / "test").mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    owner = {"fsync": os, "mkdir": Path, "rename": Path}[how]
    with monkeypatch.context() as broken:
        broken.setattr(owner, how, full)
        with pytest.raises(BackendUnavailable, match=r"No space left on device; free some space .*ep-lib cache clear"):
            cache.entry("test", "key", "done", _write)
    assert not list((tmp_path / "test").iterdir())
    assert (cache.entry("test", "key", "done", _write) / "done").read_text() == "x"


def test_a_compiler_on_a_full_disk_does_not_blame_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tools, "run", lambda command: (1, "/tmp/cc.s: fatal error: error writing: No space left on device")
    )
    with pytest.raises(BackendUnavailable, match="No space left on device"):
        Kernel.from_source(f"{SOURCE}// {time.time_ns()}\n", "add").compile()


def test_a_read_only_cache_serves_what_it_has(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Kernel.from_source(SOURCE, "add").compile()

    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    _as_a_new_process(monkeypatch)
    for owner, name in ((cache.tempfile, "mkstemp"), (os, "utime"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, refused)
    monkeypatch.setattr(cache, "cache_dir", lambda *_: own_cache)
    assert Kernel.from_source(SOURCE, "add").compile() == before
    with pytest.raises(BackendUnavailable, match="Read-only file system; set EP_LIB_CACHE_DIR"):
        Kernel.from_source(SOURCE + "\n", "add").compile()


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("damage", ["folder", "pipe", "loop"])
def test_a_lock_that_is_no_file_is_made_again(damage: str, own_cache: Path) -> None:
    kernel = Kernel.from_source(SOURCE, "add")
    image = kernel.compile().path
    for lock in (own_cache / "locks").iterdir():
        DAMAGE[damage](lock)
    shutil.rmtree(image.parent)
    assert Kernel.from_source(SOURCE, "add").compile().path == image


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kind", ["emulator", "locks", "sources"])
@pytest.mark.parametrize("target", ["", "nowhere"])
def test_a_file_or_a_dead_link_in_place_of_a_folder_goes(kind: str, target: str, own_cache: Path) -> None:
    image = Kernel.from_source(SOURCE, "add").compile().path
    shutil.rmtree(image.parent)
    shutil.rmtree(own_cache / kind)
    if target:
        (own_cache / kind).symlink_to(own_cache / target)
    else:
        (own_cache / kind).write_text("not a folder")
    assert Kernel.from_source(SOURCE, "add").compile().path == image


def test_new_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path / "new"))
    old = os.umask(0)
    try:
        place = cache.entry("test", "key", "done", _write)
    finally:
        os.umask(old)
    for folder in (tmp_path / "new", place.parent, place):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_cache_that_others_can_write_is_refused(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(mode)
    with pytest.raises(BackendUnavailable, match="others can write"):
        cache.cache_dir()


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_cache_of_somebody_else_is_refused(
    through_a_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    if through_a_link:
        (tmp_path / "link").symlink_to(place)
        place = tmp_path / "link"
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(place))
    assert cache.cache_dir() == place
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 4321)
    if real == 0:  # root may own what others use
        os.chown(place, 77, 77, follow_symlinks=through_a_link)
    with pytest.raises(BackendUnavailable, match="belongs to another user"):
        cache.cache_dir()


@pytest.mark.parametrize(
    "part", ["kind", "kind/key", "kind/key/below", "kind/key/below/done", f"kind/key/{cache.MANIFEST}"]
)
@pytest.mark.parametrize("way", ["open", "another user's"])
def test_an_entry_that_others_could_have_made_is_not_used(
    part: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_sound", {})
    built = []

    def build(folder: Path, _: Path) -> None:
        built.append(folder)
        (folder / "below").mkdir()
        (folder / "below" / "done").write_text("x")

    old = os.umask(0)  # what it makes itself is never open
    try:
        place = cache.entry("kind", "key", "below/done", build)
        assert cache.entry("kind", "key", "below/done", build) == place and len(built) == 1
    finally:
        os.umask(old)
    planted = tmp_path / part
    if way == "open":
        place.chmod(0o755)  # as in a cache that is shared: else none gets at what is in it
        planted.chmod(planted.stat().st_mode | 0o022)
    elif os.getuid() == 0:
        os.chown(planted, 77, 77)
    else:
        pytest.skip("only root can give a file to another user")
    if part == "kind":
        with pytest.raises(
            BackendUnavailable, match=f"{planted} belongs to another user|others can write into .*{planted}"
        ):
            cache.entry("kind", "key", "below/done", build)
        return
    assert cache.entry("kind", "key", "below/done", build) == place and len(built) == 2
    assert "others could have changed it" in capsys.readouterr().err
    assert cache.entry("kind", "key", "below/done", build) == place and len(built) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_note_of_another_user_is_not_read(tmp_path: Path) -> None:
    note = tmp_path / "note"
    cache.write_note(note, b"what was found")
    assert cache.read_note(note) == b"what was found"
    os.chown(note, 77, 77)
    assert cache.read_note(note) is None


@pytest.mark.parametrize("caches", ["", "of the user"])
def test_a_user_without_a_home_has_a_cache(caches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers: no HOME, and an id of which the system knows nothing."""
    for name in ("EP_LIB_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def unknown(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    if caches:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / caches))
    assert processes.home_folder() is None
    assert cache.cache_dir() == tmp_path / (f"{caches}/ep_lib" if caches else f"ep_lib-{os.getuid()}")


def test_a_planted_folder_for_temporary_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EP_LIB_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache.cache_dir().stat().st_mode & 0o777 == 0o700
    planted = tmp_path / f"ep_lib-{os.getuid()}"
    planted.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    planted.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendUnavailable, match="only you can read"):
        cache.cache_dir()


def test_old_entries_and_half_made_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    old, used, new = (cache.entry("test", name, "done", _write) for name in ("old", "used", "new"))
    (tmp_path / "test" / ".half-made").mkdir()
    long_ago = time.time() - 100 * 86400
    for path in (old, old / cache.MANIFEST, used, used / cache.MANIFEST, tmp_path / "test" / ".half-made"):
        os.utime(path, (long_ago, long_ago))
    monkeypatch.setattr(cache, "_sound", {})
    cache.entry("test", "used", "done", _write)
    os.utime(tmp_path / "pruned", (long_ago, long_ago))
    cache.entry("test", "another", "done", _write)
    assert sorted(path.name for path in (tmp_path / "test").iterdir()) == ["another", "new", "used"]
    assert new.exists()


def test_contents_prune_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    cache.entry("test", "a", "done", lambda folder, _: (folder / "done").write_bytes(bytes(5000)) and None)
    found = {kind.name: kind for kind in cache.contents()}
    assert found["test"].count == 1 and found["test"].nbytes > 5000
    assert cache.prune(1) == 0
    assert cache.prune(0) > 5000
    cache.entry("test", "b", "done", _write)
    assert cache.clear() > 0 and list(tmp_path.iterdir()) == []
    assert cache.contents() == []


def test_clear_waits_for_what_is_being_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    compiles, goes_on = threading.Event(), threading.Event()

    def build(folder: Path, _: Path) -> None:
        (folder / "done").write_text("x")
        compiles.set()
        assert goes_on.wait(60)

    waits = threading.Event()
    monkeypatch.setattr(cache, "say", lambda text: waits.set())
    with ThreadPoolExecutor(2) as threads:
        built = threads.submit(cache.entry, "test", "key", "done", build)
        assert compiles.wait(60)
        cleared = threads.submit(cache.clear)
        assert waits.wait(60) and not cleared.done()
        goes_on.set()
        assert built.result(60) == tmp_path / "test" / "key" and cleared.result(60) > 0
    assert not (tmp_path / "test").exists()


def test_a_kernel_whose_library_has_gone_is_compiled_again(own_cache: Path) -> None:
    kernel = Kernel.from_source(SOURCE, "add")
    image = kernel.compile()
    shutil.rmtree(own_cache / "emulator")  # as `ep-lib cache clear` does beside a notebook
    assert kernel.compile() == image and image.path.is_file()


@pytest.fixture
def counted_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and a compiler that only writes down what it was asked for."""
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path / "cache"))
    asked: list[str] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        target = Path(command[command.index("-o") + 1])
        target.write_bytes(b"\x7fELF")
        asked.append(target.name)
        return 0, ""

    monkeypatch.setattr(tools, "run", run)
    return asked


def test_an_interrupted_first_compile_goes_on_where_it_was(
    counted_compiles: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = len(list(toolkit.RUNTIME_SOURCES.glob("*.cpp")))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    real = tools.run

    def fail_after_five(command: Sequence[str]) -> tuple[int, str]:
        if len(counted_compiles) == 5:
            raise KeyboardInterrupt
        return real(command)

    with monkeypatch.context() as patch:
        patch.setattr(tools, "run", fail_after_five)
        with pytest.raises(KeyboardInterrupt):
            runtime_library.build_runtime()
    assert "compiling the emulator, once for this version" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        runtime_library.build_runtime()
    assert f"| {number + 1}/{number + 1} [" in capsys.readouterr().err
    assert counted_compiles.count("runtime.o") == number
    assert counted_compiles.count("precompiled.hpp.gch") == 2  # kept by nobody: the second run had files left for it
    assert len(counted_compiles) == number + 3
    runtime_library.build_runtime()
    assert len(counted_compiles) == number + 3


def test_checkouts_of_one_source_share_the_emulator(
    tmp_path: Path, counted_compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runtime_library.build_runtime()
    other = tmp_path / "other" / "ep_lib"
    for root in (toolkit.RUNTIME_SOURCES, toolkit.EMULATOR_INCLUDE, toolkit.DEVICE_INCLUDE):
        shutil.copytree(root, other / root.relative_to(toolkit.PACKAGE))
    roots = [other / root.relative_to(toolkit.PACKAGE) for root in runtime_library._ROOTS]
    monkeypatch.setattr(runtime_library, "_ROOTS", roots)
    monkeypatch.setattr(toolkit, "RUNTIME_SOURCES", roots[0])
    monkeypatch.setattr(toolkit, "PACKAGE", other)
    counted_compiles.clear()
    assert runtime_library.build_runtime() == first and counted_compiles == []
    with (other / "emulator" / "runtime" / "network.cpp").open("a") as file:
        file.write("// another\n")
    assert runtime_library.build_runtime() != first and counted_compiles.count("runtime.o") == 1
    assert len(counted_compiles) == 2  # and the linker: for one file no headers are parsed beforehand


def test_the_command_shows_prunes_and_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path / "cache"))
    cache.entry("emulator", "key", "done", lambda folder, _: (folder / "done").write_bytes(bytes(3 << 20)) and None)
    assert cli.main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "3.0 MiB       1  emulator      kernels for the emulator" in shown and str(tmp_path / "cache") in shown
    assert cli.main(["cache", "prune", "--days", "1"]) == 0 and "removed 0.0 MiB" in capsys.readouterr().out
    assert cli.main(["cache", "clear", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["freed_bytes"] > 3 << 20 and told["kinds"] == []
    assert cli.main(["cache", "prune", "--days", "-1"]) == 1 and "--days is -1" in capsys.readouterr().err


def test_a_shared_cache_is_read_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(text: str) -> Callable[[Path, Path], None]:
        return lambda folder, _: (folder / "done").write_text(text) and None

    shared, own = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(shared))
    cache.entry("emulator", "first", "done", build("the administrator's"))
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(own))
    monkeypatch.setenv("EP_LIB_SHARED_CACHE", str(shared))
    before = sorted(shared.rglob("*"))
    assert cache.entry("emulator", "first", "done", build("mine")) == shared / "emulator" / "first"
    assert cache.entry("emulator", "second", "done", build("mine")) == own / "emulator" / "second"
    assert sorted(shared.rglob("*")) == before
    (shared / "emulator" / "first" / "done").write_text("damaged")
    assert cache.entry("emulator", "first", "done", build("mine")) == own / "emulator" / "first"
    monkeypatch.setenv("EP_LIB_SHARED_CACHE", str(tmp_path / "gone"))
    assert cache.places() == [own]
    shared.chmod(0o777)
    monkeypatch.setenv("EP_LIB_SHARED_CACHE", str(shared))
    with pytest.raises(BackendUnavailable, match="others can write into"):
        cache.places()
