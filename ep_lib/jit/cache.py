"""The cache directory: one folder per entry, made elsewhere and then renamed, so it is never seen half-made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ep_lib.config import Config


def cache_dir() -> Path:
    """``$EP_LIB_CACHE_DIR``, else ``$XDG_CACHE_HOME/ep_lib``, else ``~/.cache/ep_lib``; a temporary folder of this user
    where that cannot be written. Created when missing."""
    if path := Config.from_environment().cache_dir:
        path.mkdir(parents=True, exist_ok=True)
        return path
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "ep_lib"
    if _is_writable(home):
        return home
    fallback = Path(tempfile.gettempdir()) / f"ep_lib-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():  # we load code from there: never from another user's folder
        fallback = Path(tempfile.mkdtemp(prefix="ep_lib-"))
    return fallback


def entry(kind: str, key: str, marker: str, build: Callable[[Path, Path], None]) -> Path:
    """The folder of one cache entry, built when missing.

    ``build(folder, final)`` fills the empty temporary ``folder``, which is then renamed to ``final``; ``marker`` is the
    file whose existence says that an entry is complete. Several processes may call this at once: one builds, the
    others wait for it. What ``build`` raises goes to the caller, and leaves nothing behind.
    """
    final = cache_dir() / kind / key
    if (final / marker).exists():
        return final
    with _locked(kind, key):
        if (final / marker).exists():
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=final.parent))
        try:
            build(folder, final)
            folder.chmod(0o755)
            if final.exists():  # left incomplete, for example by a cleaning job
                shutil.rmtree(final, ignore_errors=True)
            try:
                folder.rename(final)
            except OSError:  # a process without our lock (a network file system) was faster
                if not (final / marker).exists():
                    raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return final


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that other processes see the old content or the new one, nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:32]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(kind: str, key: str) -> Iterator[None]:
    """Holds the lock of one entry, where the file system has locks."""
    lock = cache_dir() / "locks" / f"{kind}-{key[:32]}"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK | os.X_OK)
