"""Reads the few facts we need from 64-bit ELF files: kernel libraries, object files and cubins.

A small reader instead of ``readelf``: the cached path must not start a process, and cubins are ELF too.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PT_TLS = 7
SHF_WRITE, SHF_ALLOC, SHF_TLS = 0x1, 0x2, 0x400
SHN_UNDEF, SHN_COMMON, SHN_LORESERVE = 0, 0xFFF2, 0xFF00
STT_OBJECT, STT_COMMON, STT_TLS, STT_GNU_IFUNC = 1, 5, 6, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
_JUMP_SLOTS = (7, 1026)  # of x86-64 and aarch64
_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_DYNSYM = 2, 4, 8, 11

_AT_LOAD = (".init_array", ".ctors", ".fini_array", ".dtors")
_HARMLESS = {"__tsan_init"}  # of -fsanitize=thread
_BESIDE = {"_GLOBAL_OFFSET_TABLE_", "__tsan_func_entry", "__tsan_func_exit", ""}


@dataclass(frozen=True)
class Section:
    """One section header; ``address`` is where it is loaded, ``offset`` where it lies in the file."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class Symbol:
    """One symbol; ``section`` is a section index or one of the SHN_ constants."""

    name: str
    type: int
    section: int
    value: int
    size: int
    binding: int = STB_GLOBAL

    @property
    def is_local(self) -> bool:
        """Whether it is seen in its own object file only."""
        return self.binding == STB_LOCAL


class Elf:
    """A 64-bit little-endian ELF file held in memory.

    Raises ``ValueError`` when the bytes are something else.
    """

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"not a 64-bit little-endian ELF file: it starts with {data[:6]!r}")
        self.data = data
        self.is_relocatable = struct.unpack_from("<H", data, 16)[0] == 1
        self.segments = self._read_segments()
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()

    def tls_bytes(self) -> int:
        """Size of the thread-local segment (the emulator's static ``__shared__`` memory), 0 if there is none."""
        return next((memory_size for kind, memory_size in self.segments if kind == PT_TLS), 0)

    def symbol_bytes(self, name: str) -> bytes:
        """Content of an initialised variable, preferably a global one. Raises ``KeyError`` if it does not exist or has
        no content."""
        for symbol in sorted(self.symbols, key=lambda each: each.is_local):
            if symbol.name == name and 0 < symbol.section < SHN_LORESERVE:
                section = self.sections[symbol.section]
                if section.type == _SHT_NOBITS:
                    break
                start = section.offset + symbol.value - (0 if self.is_relocatable else section.address)
                return self.data[start : start + symbol.size]
        raise KeyError(name)

    def undefined_names(self) -> set[str]:
        """Symbols that an object file uses and does not define."""
        return {s.name for s in self.symbols if s.section == SHN_UNDEF and s.name}

    def defined_names(self, *, local: bool = False, strong: bool = False) -> set[str]:
        """Symbols that it defines for others; ``local``: also for itself; ``strong``: only those that no other
        definition replaces."""
        return {
            s.name
            for s in self.symbols
            if s.section != SHN_UNDEF
            and s.name
            and (local or not s.is_local)
            and not (strong and s.binding == STB_WEAK)
        }

    def files_of_lines(self) -> set[str]:
        """The files that an object file's tables of lines name (DWARF 2 to 4, section 6.2.4), with their folders."""
        found: set[str] = set()
        for section in (each for each in self.sections if each.name == ".debug_line"):
            at, end = section.offset, section.offset + section.size
            while at < end:
                (length,) = struct.unpack_from("<I", self.data, at)
                (version,) = struct.unpack_from("<H", self.data, at + 4)
                codes = at + 10 + (6 if version >= 4 else 5)  # behind the lengths and the description of the line table
                names = codes - 1 + self.data[codes - 1]  # behind the lengths of the codes
                if not 2 <= version <= 4:
                    raise ValueError(f"a table of lines of DWARF {version}; -gdwarf-4 asks for another")
                at += 4 + length
                folders = [""]
                while self.data[names]:
                    folders.append(self._text(names))
                    names = self.data.index(b"\0", names) + 1
                names += 1
                while self.data[names]:
                    file = self._text(names)
                    folder, names = self._uleb128(self.data.index(b"\0", names) + 1)
                    for _ in ("time", "length"):
                        _, names = self._uleb128(names)
                    found.add(posixpath.normpath(posixpath.join(folders[folder], file)))
        return found

    def _uleb128(self, at: int) -> tuple[int, int]:
        """A number of variable length (LEB128), and where it ends."""
        value = shift = 0
        while True:
            byte = self.data[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value, at

    def relocations(self, section: int) -> list[tuple[int, Symbol, int]]:
        """(offset, symbol, addend) of the relocations in a section of an object file."""
        tables = (table for table in self.sections if table.type == _SHT_RELA and table.info == section)
        return [(offset, symbol, addend) for table in tables for offset, symbol, _, addend in self._relocations(table)]

    def addresses_of_others(self) -> list[str]:
        """Symbols of other libraries whose address this library takes. Functions that it only calls are not among them:
        calls go through the procedure linkage table."""
        loaders = [s for s in self.sections if s.type == _SHT_RELA and self.sections[s.link].type == _SHT_DYNSYM]
        return sorted(
            {
                symbol.name
                for table in loaders
                for _, symbol, kind, _ in self._relocations(table)
                if symbol.name and symbol.section == SHN_UNDEF and kind not in _JUMP_SLOTS
            }
        )

    def _relocations(self, table: Section) -> Iterator[tuple[int, Symbol, int, int]]:
        """(offset, symbol, kind, addend)"""
        symbols = self._symbols_of(self.sections[table.link])
        for at in range(table.offset, table.offset + table.size, 24):
            offset, info, addend = struct.unpack_from("<QQq", self.data, at)
            yield offset, symbols[info >> 32], info & 0xFFFFFFFF, addend

    def _read_segments(self) -> list[tuple[int, int]]:
        offset, entry_size, count = *struct.unpack_from("<Q", self.data, 32), *struct.unpack_from("<HH", self.data, 54)
        heads = (struct.unpack_from("<IIQQQQQ", self.data, offset + i * entry_size) for i in range(count))
        return [(head[0], head[6]) for head in heads]

    def _read_sections(self) -> list[Section]:
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        entry_size, count, names = struct.unpack_from("<HHH", self.data, 58)
        raw = [struct.unpack_from("<IIQQQQII", self.data, offset + i * entry_size) for i in range(count)]
        names_at = raw[names][4] if raw else 0
        return [Section(self._text(names_at + r[0]), *r[1:]) for r in raw]

    def _read_symbols(self) -> list[Symbol]:
        symbols = []
        tables = [s for s in self.sections if s.type == _SHT_SYMTAB] or [
            s for s in self.sections if s.type == _SHT_DYNSYM
        ]
        for table in tables:
            symbols += self._symbols_of(table)
        return symbols

    def _symbols_of(self, table: Section) -> list[Symbol]:
        names_at = self.sections[table.link].offset
        symbols = []
        for at in range(table.offset, table.offset + table.size, 24):
            name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", self.data, at)
            symbols.append(Symbol(self._text(names_at + name), info & 0xF, section, value, size, info >> 4))
        return symbols

    def _text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode("utf-8", "replace")


def undefined_tls_symbols(obj: Elf) -> list[str]:
    """Thread-local variables that an object file uses but does not define: its ``extern __shared__`` arrays."""
    return sorted({s.name for s in obj.symbols if s.section == SHN_UNDEF and s.type == STT_TLS})


def defined_tls_symbols(obj: Elf) -> list[str]:
    """Thread-local variables of an object file: its ``__shared__`` ones."""
    return sorted({s.name for s in obj.symbols if s.section != SHN_UNDEF and s.type == STT_TLS})


def variable_sizes(obj: Elf) -> dict[str, int]:
    """Bytes of each variable that an object file defines, except thread-local ones."""
    return {s.name: s.size for s in obj.symbols if s.section != SHN_UNDEF and s.type in (STT_OBJECT, STT_COMMON)}


@dataclass(frozen=True)
class AtLoad:
    """A function that the loader runs: an object file's initialisers, or a function marked as a constructor."""

    section: str
    begin: int
    end: int


def functions_at_load(obj: Elf) -> list[AtLoad]:
    """Functions that run when an object file is loaded or unloaded, without the compiler's own."""
    resolvers = [s for s in obj.symbols if s.type == STT_GNU_IFUNC and s.section != SHN_UNDEF]
    found = [AtLoad(obj.sections[s.section].name, s.value, s.value + s.size) for s in resolvers]
    found += [AtLoad(s.name, 0, s.size) for s in obj.sections if s.name in (".init", ".fini") and s.size]
    for index, section in enumerate(obj.sections):
        if not section.name.startswith(_AT_LOAD):
            continue
        for _, symbol, addend in obj.relocations(index):
            begin = symbol.value + addend
            sizes = [s.size for s in obj.symbols if s.section == symbol.section and s.value == begin]
            end = begin + max(sizes, default=1)
            inside = obj.relocations(symbol.section)
            uses = {s.name for offset, s, _ in inside if begin <= offset < end}
            if not uses & _HARMLESS or uses - _HARMLESS - _BESIDE:
                found.append(AtLoad(obj.sections[symbol.section].name, begin, end))
    return found


def names_of_the_linker(obj: Elf, inputs: Sequence[Elf], linked: Elf) -> list[str]:
    """Symbols that an object file uses and only the linker defines (in ``linked``, not in its ``inputs``):
    ``_DYNAMIC``, ``__ehdr_start``, ``end``. Without the two that compilers themselves use."""
    used = {s.name for s in obj.symbols if s.section == SHN_UNDEF} - {"_GLOBAL_OFFSET_TABLE_", "__dso_handle", ""}
    defined = {s.name for each in inputs for s in each.symbols if s.section != SHN_UNDEF}
    return sorted((used - defined) & {s.name for s in linked.symbols if s.section != SHN_UNDEF})


def virtual_thunks(obj: Elf) -> list[str]:
    """Code that compilers write for virtual functions of virtual bases, after all passes: it reads the offset of an
    object from its base."""
    return sorted({s.name for s in obj.symbols if s.name.startswith(("_ZTv", "_ZTc")) and s.section != SHN_UNDEF})


def has_writable_globals(obj: Elf) -> bool:
    """Whether an object file defines variables that a kernel can change (``__device__``, ``__constant__``, static)."""
    for symbol in obj.symbols:
        if symbol.type not in (STT_OBJECT, STT_COMMON) or symbol.size == 0 or symbol.name.startswith("_ZStL8__ioinit"):
            continue
        if symbol.section == SHN_COMMON:
            return True
        if 0 < symbol.section < SHN_LORESERVE:
            section = obj.sections[symbol.section]
            is_writable = section.flags & SHF_WRITE and not section.flags & SHF_TLS
            if is_writable and not section.name.startswith(".data.rel.ro"):
                return True
    return False
