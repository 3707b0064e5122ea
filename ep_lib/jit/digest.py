"""Cache keys: a digest of everything that can change the result of compiling a kernel.

It covers the translation unit (source, kernel name, defines), the options, the include roots in order, the compiler,
the version of ep_lib, and the content of every header that the source includes, directly or through others. Headers are
found as a compiler finds them, so a header that newly appears in an earlier root changes the key. Conditions are not
evaluated: a header behind ``#if 0`` counts too, which at worst costs an unnecessary recompilation.

The idea is DeepEP's (``csrc/jit/include_parser.hpp``).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ep_lib.jit import cache

_SCHEMA = "ep_lib jit 2"  # changed to invalidate old cache entries

# #include <a> and "a", __has_include(<a>), and #define X <a>, which may be included as X
_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*(?:include(?:_next)?|define[ \t]+\w+|(?:el)?if\b.*?__has_include[ \t]*\()"
    r"[ \t]*(<[^>\n]+>|\"[^\"\n]+\")",
    re.MULTILINE,
)

Key = TypeVar("Key")
Value = TypeVar("Value")
Stamp = tuple[int, int, int, int]  # modified and changed (ns), size, inode


class _File(NamedTuple):
    """The content of a file with this stamp."""

    stamp: Stamp
    digest: str
    includes: tuple[str, ...]  # with their <> or ""


class Headers(NamedTuple):
    """The headers that a source reaches, as absolute paths, sorted; ``others``: names found in no root. ``settled``:
    names by which the source, or headers outside the settled roots, include headers of a settled root."""

    digest: str
    files: tuple[str, ...]
    others: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()

    def outside(self, folders: Sequence[Path]) -> list[Path]:
        """The headers outside of these folders."""
        inside = tuple(f"{folder}{os.sep}" for folder in folders)
        return [Path(file) for file in self.files if not file.startswith(inside)]


class Recent(Generic[Key, Value]):
    """A cache of the ``limit`` most recently used entries: a process may compile any number of sources."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)


_files: Recent[str, _File] = Recent(16384)  # of this process; CUDA's headers are about 2,300
_walks: Recent[tuple[str, tuple[str, ...], tuple[str, ...], str], _Walk] = Recent(256)  # likewise
_SETTLED_NS = 50_000_000  # a file changed more recently than this may change again within one tick of the clock


def key(headers: Headers, parts: Iterable[str]) -> str:
    """The cache key (64 hex digits) of a compilation. ``parts``: texts that all matter, in order."""
    hasher = hashlib.sha256()
    for part in (_SCHEMA, headers.digest, *parts):
        data = part.encode("utf-8", "surrogateescape")
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return hasher.hexdigest()


def scan(text: str, roots: Sequence[Path], settled_roots: Sequence[Path] = (), *, home: Path | None = None) -> Headers:
    """Follows the includes of a translation unit through ``roots`` and then ``settled_roots``.

    The digest is of the headers' paths and contents; a path below ``home`` counts from there, so that two copies of a
    tree give the same.
    ``settled_roots`` are large trees that hardly change (CUDA's headers): their content is remembered in the cache
    directory and only checked by time and size, once per process. Includes that no root has are left to the compiler's
    own folders, which its version covers.
    """
    what = (text, tuple(map(str, roots)), tuple(map(str, settled_roots)), str(home))
    before = _walks.get(what)
    if before is not None and before.holds():
        return before.headers
    walk = _Scan(roots, settled_roots, home)
    headers = walk.run(text)
    remembered = walk.remember(headers)
    if walk.is_settled:
        _walks.put(what, remembered)
    return headers


class _Walk(NamedTuple):
    """A scan that stays valid as long as the files that it saw outside the settled roots are unchanged."""

    headers: Headers
    paths: tuple[tuple[str, Stamp], ...]  # headers, and folders searched without success

    def holds(self) -> bool:
        return all(stamp_of(path) == stamp for path, stamp in self.paths)


class _Scan:
    """One walk over the includes; resolutions of angle includes are shared by all files of the walk."""

    def __init__(self, roots: Sequence[Path], settled_roots: Sequence[Path], home: Path | None) -> None:
        self.home = "" if home is None else f"{home}{os.sep}"
        settled = [str(root) for root in settled_roots]
        self.roots = [(root, _top_level(root)) for root in (*map(str, roots), *settled)]
        self.settled = tuple(root + os.sep for root in settled)
        self.resolved: dict[str, str] = {}
        self.own_roots = len(roots)
        self.own: dict[str, Stamp] = {}  # files and folders outside the settled roots
        self.is_settled = True  # False if a file is so fresh that it may change unseen
        self.store = _Store(settled) if settled else None

    def run(self, text: str) -> Headers:
        hasher = hashlib.sha256()
        seen: set[str] = set()
        others: set[str] = set()
        settled: set[str] = set()
        waiting = [(name, "", False) for name in reversed(includes(text))]
        while waiting:
            name, folder, by_settled = waiting.pop()
            path = self.find(name, folder)
            hasher.update(f"{name}\0{path.removeprefix(self.home)}\0".encode("utf-8", "surrogateescape"))
            if not path:
                others.add(name[1:-1])
            if not by_settled and path.startswith(self.settled):
                settled.add(name[1:-1])
            if not path or path in seen:
                continue
            seen.add(path)
            file = self.read(path)
            hasher.update(file.digest.encode())
            inside = os.path.dirname(path)  # noqa: PTH120 - hundreds of headers a scan; pathlib costs 5 us each
            is_settled = path.startswith(self.settled)
            waiting += [(included, inside, is_settled) for included in reversed(file.includes)]
        if self.store is not None:
            self.store.save()
        return Headers(hasher.hexdigest(), tuple(sorted(seen)), frozenset(others), frozenset(settled))

    def find(self, name: str, folder: str) -> str:
        """The path of an include as a compiler finds it, or "" when no root has it."""
        plain = name[1:-1]
        if name[0] == '"' and folder:
            path = os.path.normpath(f"{folder}/{plain}")
            if self.is_file(path):
                return path
        known = self.resolved.get(plain)
        if known is None:
            known = self.resolved[plain] = self._search(plain)
        return known

    def _search(self, plain: str) -> str:
        first = plain.partition("/")[0]
        if first in ("", ".", ".."):
            candidates = [root for root, _ in self.roots]
        else:
            candidates = [root for root, names in self.roots if first in names]
        for root in candidates:
            path = os.path.normpath(os.path.join(root, plain))  # noqa: PTH118
            if self.is_file(path):
                return path
        return ""

    def is_file(self, path: str) -> bool:
        found = os.path.isfile(path)  # noqa: PTH113
        if not found and not path.startswith(self.settled):
            self.look_into(os.path.dirname(path))  # noqa: PTH120
        return found

    def look_into(self, folder: str) -> None:
        """Records a searched folder: a header that appears there changes its stamp. For a missing folder, records its
        nearest existing parent."""
        while folder not in self.own:
            stamp = self.own[folder] = stamp_of(folder)
            if time.time_ns() - max(stamp[:2]) < _SETTLED_NS:
                self.is_settled = False
            if stamp[3] or folder == os.path.dirname(folder):  # noqa: PTH120
                break
            folder = os.path.dirname(folder)  # noqa: PTH120

    def remember(self, headers: Headers) -> _Walk:
        for root, _ in self.roots[: self.own_roots]:
            self.look_into(root)
        return _Walk(headers, tuple(self.own.items()))

    def read(self, path: str) -> _File:
        stamp = stamp_of(path)
        known = _files.get(path)
        is_settled = self.store is not None and path.startswith(self.settled)
        if not is_settled:
            self.own[path] = stamp
        if known is None and is_settled and self.store is not None:
            known = self.store.files.get(path)
        if known is None or known.stamp != stamp:
            content = Path(path).read_bytes()
            text = content.decode("utf-8", "replace")
            known = _File(stamp, hashlib.sha256(content).hexdigest(), tuple(includes(text)))
            if time.time_ns() - max(stamp[:2]) < _SETTLED_NS:
                self.is_settled = False
                return known
            if is_settled and self.store is not None:
                self.store.add(path, known)
        _files.put(path, known)
        return known


class _Store:
    """Known files under the settled roots, kept in the cache directory between processes."""

    _loaded: dict[Path, dict[str, _File]] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, roots: Sequence[str]) -> None:
        name = hashlib.sha256("\n".join(roots).encode()).hexdigest()[:32]
        self.path = cache.cache_dir() / "headers" / f"{name}.json"
        if self.path not in self._loaded:
            self._loaded[self.path] = self._load()
        self.files = self._loaded[self.path]
        self.is_changed = False

    def add(self, path: str, file: _File) -> None:
        self.files[path] = file
        self.is_changed = True

    def save(self) -> None:
        """Other processes may save at the same time: the last one wins, and files of the others are read again."""
        if self.is_changed:
            rows = {path: [list(file.stamp), file.digest, list(file.includes)] for path, file in self.files.items()}
            cache.write_note(self.path, json.dumps(rows).encode())
            self.is_changed = False

    def _load(self) -> dict[str, _File]:
        known = cache.read_note(self.path)
        rows = json.loads(known) if known is not None else {}
        return {
            path: _File((s[0], s[1], s[2], s[3]), digest, tuple(names)) for path, (s, digest, names) in rows.items()
        }


def stamp_of(path: str) -> Stamp:
    """The stamp of a file; zeros if there is none. The path may be any macro's text, of any length."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return 0, 0, 0, 0
        raise
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def includes(text: str) -> list[str]:
    return [match.group(1) for match in _INCLUDE.finditer(text)]


def _top_level(root: str) -> frozenset[str]:
    """Names in a root: most includes are rejected by their first component, without asking the file system."""
    try:
        return frozenset(os.listdir(root))  # noqa: PTH208
    except OSError:
        return frozenset()
