"""The cache directory: compiled results that are never visible half-written, and never used if damaged.

An entry is a folder, filled under another name, written through to the disk and then renamed. It contains a list of its
files with their digests, which a process compares before it first uses the entry: an entry damaged by a full disk, a
crash or another program is rebuilt once, with a message. A note is a single file of the same kind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePath

from ep_lib import processes
from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable

MANIFEST = "manifest.json"  # of an entry: its files' sizes and digests
KEPT_DAYS = 60  # entries unused for so long are removed
_DAY = 86400.0
_STALE_S = 1 * _DAY  # half-written files of a killed process are removed after this
_NOTE_MAGIC = b"ep_lib note "

_Stamp = tuple[int, int, int]  # a file's size, time of change and inode
_sound: dict[Path, tuple[_Stamp, ...]] = {}  # entries that this process has verified, with their files' stamps then


def say(text: str) -> None:
    """Prints one line for the user on stderr: a step takes long, or an entry was repaired."""
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"ep_lib: {text}\n")
        sys.stderr.flush()


# ---- where ---------------------------------------------------------------------------------------------------------
def cache_dir(config: Config | None = None) -> Path:
    """``$EP_LIB_CACHE_DIR``, else ``$XDG_CACHE_HOME/ep_lib``, else ``~/.cache/ep_lib``; a temporary folder of this user
    if that cannot be written, or there is no home. Created if missing, for this user alone.

    Raises BackendUnavailable for a folder that cannot be created, or that other users could write code into.
    """
    if path := (config or Config.from_environment()).cache_dir:
        with _typed("made", path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _trusted(path)
    home, caches = processes.home_folder(), os.environ.get("XDG_CACHE_HOME")
    if not caches and home is None:
        return processes.private_folder()
    folder = Path(caches or f"{home}/.cache") / "ep_lib"
    return _trusted(folder) if _is_writable(folder) else processes.private_folder()


def places() -> list[Path]:
    """The directories searched for entries: ``$EP_LIB_SHARED_CACHE`` (read only), if it exists, and :func:`cache_dir`.

    Raises BackendUnavailable for a directory that other users could write code into.
    """
    config = Config.from_environment()
    shared = config.shared_cache
    return [*([_trusted(shared)] if shared is not None and shared.is_dir() else []), cache_dir(config)]


def _trusted(path: Path) -> Path:
    """``path``, if only its user (or root) can put files into it: code is loaded from there."""
    with _typed("read", path):
        status = path.stat()  # follows links: users move their caches to larger disks
        strangers = [each.st_uid for each in (status, path.lstat()) if _is_strangers(each)]
    if strangers:
        raise BackendUnavailable(
            f"the cache directory {path} belongs to another user (id {strangers[0]}), and code is loaded from "
            f"there: set EP_LIB_CACHE_DIR to a directory of your own, EP_LIB_SHARED_CACHE to one of root's"
        )
    if _is_open(status):
        raise BackendUnavailable(
            f"others can write into the cache directory {path}, and code is loaded from there: `chmod 700 {path}`, "
            f"or set EP_LIB_CACHE_DIR to another directory"
        )
    return path


def _is_strangers(status: os.stat_result) -> bool:
    return status.st_uid not in (os.getuid(), 0)


def _is_open(status: os.stat_result) -> bool:
    """Whether other users can write there."""
    own_group = status.st_gid in (os.getuid(), 0)  # with one group per user, files are writable for it
    return bool(status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP))


def _require_own(path: Path, status: os.stat_result) -> None:
    """Raises OSError for another user's part of the cache."""
    if _is_strangers(status):
        raise OSError(errno.EPERM, "another user's", str(path))


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _typed(what: str, path: Path) -> Iterator[None]:
    """Turns an OSError into an error that names the cache's path and a remedy."""
    try:
        yield
    except OSError as error:
        advice = "set EP_LIB_CACHE_DIR to a directory that you can write"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free some space (`ep-lib cache clear` empties the cache), or {advice}"
        raise BackendUnavailable(f"{path} in the compile cache cannot be {what}: {error.strerror}; {advice}") from error


# ---- entries -------------------------------------------------------------------------------------------------------
def entry(kind: str, key: str, marker: str, build: Callable[[Path, Path], None]) -> Path:
    """The folder of one cache entry, built if it is missing or damaged.

    ``build(folder, final)`` fills the empty temporary ``folder``, which is then renamed to ``final``; ``marker`` is a
    file that every entry of this kind has. Several processes may call this at once: one builds, the others wait for
    it. Exceptions of ``build`` reach the caller, and no files stay behind. Raises BackendUnavailable if the directory
    cannot be written, or other users could write code into the folder of that kind.
    """
    for place in places():
        if (place / kind).is_dir():
            _trusted(place / kind)
        if _is_sound(place / kind / key, marker):
            return place / kind / key
    final = cache_dir() / kind / key
    with _typed("written", final), _kept(fcntl.LOCK_SH), _locked(kind, key):
        if _is_sound(final, marker):
            return final
        if os.path.lexists(final):
            say(f"the cache entry {final} was damaged, or others could have changed it; it is made again")
        _make_folder(final.parent)
        with processes.temporary_folder(f".{key[:16]}-", final.parent) as folder:
            build(folder, final)
            if not (folder / marker).is_file():
                raise BackendUnavailable(f"what makes {kind} entries of the cache said that it was done, but made none")
            _seal(folder)
            _replace(folder, final)
        if not _is_sound(final, marker):
            raise BackendUnavailable(
                f"the cache entry {final} reads back otherwise than it was written: is the disk broken or full? "
                f"EP_LIB_CACHE_DIR names another place"
            )
    _tidy()
    return final


def _make_folder(path: Path) -> None:
    """Makes a folder; removes a file of the same name in the cache. Raises OSError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        for place in (path.parent, path):
            if cache_dir() in place.parents and not place.is_dir():
                place.unlink(missing_ok=True)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _seal(folder: Path) -> None:
    """Writes the list of the entry's files, and flushes the entry to the disk."""
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({"files": files, "digest": _digest_of(files)})
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    for path in (*(folder / name for name in files), folder / MANIFEST, folder):
        _flush(path)


def _replace(folder: Path, final: Path) -> None:
    """Gives ``folder`` its final name; the old folder is moved away first, since a folder with files cannot be
    replaced."""
    aside = folder.with_name(f"{folder.name}-old")
    with contextlib.suppress(FileNotFoundError):
        final.rename(aside)
    try:
        folder.rename(final)
    except OSError as error:  # a process without our lock (a network file system) was faster
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _flush(final.parent)
    _discard(aside)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support it
            raise
    finally:
        os.close(descriptor)


def _is_sound(final: Path, marker: str) -> bool:
    """Whether all files of an entry exist as written, and none could be from another user. Digests are compared once
    per process, and again if a file's stamp has changed."""
    try:
        with _open(final / MANIFEST) as file:
            manifest = file.read()
        described = json.loads(manifest)
        files = described["files"]
        if described["digest"] != _digest_of(files) or marker not in files:
            return False
        stamps = tuple(_stamp(final / name) for name in files)
        folders = {final / parent for name in files for parent in PurePath(name).parents}
        for folder in folders:
            _require_own(folder, folder.stat())
        is_shut = not final.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)  # then other users cannot reach its files
        if not is_shut and any(_is_open(path.stat()) for path in (*folders, *map(final.joinpath, (MANIFEST, *files)))):
            return False
        if _sound.get(final) == stamps:
            return True
        if any(_digest(final / name) != digest for name, digest in files.items()):
            return False
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    _sound[final] = stamps
    with contextlib.suppress(OSError):  # a read-only place: entries do not age there
        os.utime(final / MANIFEST)
    return True


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    _require_own(path, status)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _open(path: Path) -> BufferedReader:
    """Opens an ordinary file of this user for reading. Raises OSError for anything else: opening a pipe would wait for
    a writer."""
    with contextlib.ExitStack() as closing:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        closing.push(file)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        _require_own(path, status)
        closing.pop_all()
    return file


def _digest(path: Path) -> str:
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(files: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


# ---- single files --------------------------------------------------------------------------------------------------
def write_note(path: Path, data: bytes) -> None:
    """Writes a file for :func:`read_note`. Notes only save time, so an unwritable place is no error."""
    with contextlib.suppress(OSError):
        write_atomically(path, _NOTE_MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def read_note(path: Path) -> bytes | None:
    """The content of a note of :func:`write_note`; None if it is missing or damaged."""
    try:
        with _open(path) as file:
            head, _, data = file.read().partition(b"\n")
    except OSError:
        return None
    return data if head == _NOTE_MAGIC + hashlib.sha256(data).hexdigest().encode() else None


def write_file(path: Path, data: bytes) -> None:
    """Makes sure that a file has this content. Raises BackendUnavailable if it cannot be written."""
    try:
        with _open(path) as file:
            if file.read() == data:
                return
    except OSError:
        pass  # missing or unreadable
    with _typed("written", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        write_atomically(path, data)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that other processes see either the old content or the new one. Raises OSError."""
    _make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:32]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _kept(operation: int) -> Iterator[None]:
    """Holds the lock of the whole cache, where the file system has locks: LOCK_SH while entries are made, LOCK_EX while
    they are removed."""
    descriptor = os.open(cache_dir(), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation == fcntl.LOCK_EX:
                    say("the cache is emptied once what other processes compile now is done")
                fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)  # and unlocks it


@contextlib.contextmanager
def _locked(kind: str, key: str) -> Iterator[None]:
    """Holds the lock of one entry, where the file system has locks."""
    lock = cache_dir() / "locks" / f"{kind}-{key[:32]}"
    _make_folder(lock.parent)
    if lock.is_symlink() or (lock.exists() and not lock.is_file()):
        _discard(lock)
    with lock.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it


# ---- contents and removal ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """One kind of cache entries: their number and total bytes."""

    name: str
    count: int
    nbytes: int


def contents() -> list[Kind]:
    """The contents of the cache directory by kind, the largest first."""
    kinds = []
    with _typed("read", cache_dir()):
        for folder in sorted(path for path in cache_dir().iterdir() if path.is_dir()):
            items = list(folder.iterdir())
            kinds.append(Kind(folder.name, len(items), sum(map(_nbytes, items))))
    return sorted(kinds, key=lambda kind: -kind.nbytes)


def prune(days: float) -> int:
    """Removes entries unused for ``days`` days, and half-written ones of killed processes; returns the bytes freed."""
    freed = 0
    now = time.time()
    for folder in [path for path in cache_dir().iterdir() if path.is_dir()]:
        for item in folder.iterdir():
            age = _STALE_S if item.name.startswith(".") else days * _DAY
            if now - _last_use(item) < age:
                continue
            freed += _free(item)
    return freed


def clear() -> int:
    """Removes everything, after running compilations have finished; returns the bytes freed. Running processes are not
    harmed: loaded libraries stay until they end, and other entries are built again."""
    with _kept(fcntl.LOCK_EX):
        return sum(map(_free, list(cache_dir().iterdir())))


def _free(item: Path) -> int:
    """Removes a file or a folder; returns its bytes, 0 if it could not be removed."""
    nbytes = _nbytes(item)
    _discard(item)
    return 0 if item.exists() else nbytes


def _tidy() -> None:
    """Prunes once a day, after a build."""
    mark = cache_dir() / "pruned"
    with contextlib.suppress(OSError):
        if mark.exists() and time.time() - mark.stat().st_mtime < _DAY:
            return
        mark.touch()
        prune(KEPT_DAYS)


def _last_use(item: Path) -> float:
    for path in (item / MANIFEST, item):
        with contextlib.suppress(OSError):
            return path.lstat().st_mtime
    return time.time()


def _nbytes(item: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 for files removed meanwhile."""
    total = 0
    with contextlib.suppress(OSError):
        if item.is_symlink() or item.is_file():
            return item.lstat().st_size
        for path in item.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_size
    return total
