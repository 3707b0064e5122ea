"""Small changes of a piece of code, each of them probably a mistake: the mutants of mutation testing.

Works on words, not on a syntax tree, so that it serves C++ and Python alike; what does not compile is dropped later.
Besides the usual changes (operators, constants, conditions, missing and doubled statements) there are those that
communication code invites: a relaxed order or a smaller scope, a barrier left out, 64 bits cut to 32, a peer's pointer
not translated, another lane, swapped arguments.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

_WORDS = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
      | (?P<string>f?"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?[fFuUlL]*)
      | (?P<name>[A-Za-z_]\w*(?:(?:::|\.|->)[A-Za-z_]\w*)*)
      | (?P<sign><<=|>>=|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|//|::|->|[-+*/%&|^~!<>=?:;,.(){}\[\]])""",
    re.VERBOSE | re.DOTALL,
)

# What a word becomes. Signs that C++ and Python share have one row.
_OTHER_SIGNS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=", ">="), "!=": ("==",),
    "+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "//": ("*",), "%": ("/", "+"), "<<": (">>",), ">>": ("<<",),
    "&": ("|",), "|": ("&", "^"), "^": ("&",), "&&": ("||",), "||": ("&&",), "!": ("",), "~": ("",),
    "+=": ("-=", "="), "-=": ("+=",), "*=": ("+=",), "|=": ("=", "&="), "&=": ("|=",), "++": ("--",), "--": ("++",),
}  # fmt: skip
_OTHER_NAMES = {
    "true": ("false",), "false": ("true",), "True": ("False",), "False": ("True",), "and": ("or",), "or": ("and",),
    "not": ("",), "continue": ("break",), "break": ("continue",), "nullptr": ("mine",),
    "threadIdx.x": ("blockIdx.x", "0", "(threadIdx.x + 1)", "(threadIdx.x % 32)"),
    "blockDim.x": ("gridDim.x", "32", "1", "(blockDim.x + 1)"),
    "kWarpSize": ("1", "(kWarpSize / 2)", "(kWarpSize * 2)"),
    "uint64_t": ("uint32_t",), "int64_t": ("int32_t",), "size_t": ("uint32_t", "uint8_t"), "uint32_t": ("uint16_t",),
    "kPhaseSignal": ("kPhaseCredit",), "kPhaseCredit": ("kPhaseSignal",), "kPhaseCombine": ("kPhaseSignal",),
    "__syncthreads": ("__syncwarp",), "__all_sync": ("__any_sync",), "__shfl_xor_sync": ("__shfl_down_sync",),
    "__reduce_add_sync": ("__reduce_max_sync",), "fence_sys": ("fence_gpu",), "__popc": ("__clz",),
    "min": ("max",), "max": ("min",), "fmaxf": ("fminf",), "fabsf": ("",), "append": ("remove",), "sum": ("max", "len"),
    "range": ("reversed",), "sorted": ("list",), "NetSignal::kSet": ("NetSignal::kAdd",),
}  # fmt: skip
_OTHER_CALLS = {  # of a whole call, with its arguments
    "lane_id": ("0", "thread_in_block()", "(lane_id() + 1)", "(31 - lane_id())"),
    "thread_in_block": ("0", "lane_id()", "(thread_in_block() + 1)"), "threads_in_block": ("kWarpSize", "1"),
    "warp_id": ("0", "lane_id()"), "warps_in_block": ("1", "(warps_in_block() - 1)", "kWarpSize"),
    "rank": ("0", "(rank() ^ 1)"), "num_ranks": ("2", "(num_ranks() - 1)", "(num_ranks() + 1)"),
    "num_queue_pairs": ("1", "2"), "net_quiet": ("",),
}  # fmt: skip
_PARTS_OF_NAMES = (  # the order, the scope and the width of an access are in its function's name
    ("_acquire_", "_relaxed_"), ("_release_", "_relaxed_"), ("_acq_rel_", "_relaxed_"), ("_acq_rel_", "_release_"),
    ("_acq_rel_", "_acquire_"), ("_sys_", "_gpu_"), ("_u64", "_u32"), ("_rn", "_rz"), ("_rn", "_ru"),
)  # fmt: skip
_WIDE = re.compile(r"\b(?:u?int64_t|size_t|unsigned long long)\s+(?:const\s+)?(\w+)\b")
_POINTER = re.compile(r"\*\s*(?:const\s+)?(\w+)\b")
_DECLARED = re.compile(
    r"\b(?:u?int(?:64|32|16|8)?(?:_t)?|size_t|float|bool|auto|char|int4)\b[\s*&]*(?:const\s+)?(\w+)\b"
)
# What tells people what a wait was for, and comments: nobody asks for these words.
_FREE = re.compile(r"\{(?:ep::)?kPhase\w+[^}]*\}|//[^\n]*|raise \w+\([^\n]*\)$", re.MULTILINE)
_TWICE_IS_ONCE = re.compile(
    r"(const|return|continue|break|u?int|float|__sync|\S*quiet|\S*wait|\S*st_|\S*copy_bytes|\S*put_warp|\S*put_thread)|[^=]*[^=<>!+*|&-]=[^=(]*;?$"
)
_ASSIGNS = re.compile(r"[\w., ]+(: [\w\[\]]+)? = ")  # in Python
_ORDER_COUNTS = re.compile(r"__sync|st_|add|put|quiet|wait|post|copy|fill|signal|shfl")
# What is never left out where there are too many: barriers, orders, widths, whose memory, and what is missing.
_FIRST = re.compile(
    r"` goes|becomes `;`|becomes `pass`|relaxed|_gpu_|__sync|\\S*quiet|\\S*wait|uint32_t>|peer_ptr\S* becomes|quiet"
)
_KEYWORDS = frozenset(_OTHER_NAMES) | set(
    """if else for while do switch case return const constexpr auto unsigned int char float void static_cast
    reinterpret_cast struct enum class template typename in is None def lambda raise try except import from as with
    yield pass self nonlocal global list str bytes dict set tuple""".split()  # noqa: SIM905 - forty words
)

Named = TypeVar("Named", bound="_Named")


class Mutant(NamedTuple):
    what: str  # "line 2: `<` becomes `<=` in `i < count`": says which it is, also to a list of equivalent ones
    code: str


class _Word(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int


def mutants(code: str, before: str = "", *, python: bool = False) -> list[Mutant]:
    """All mutants of ``code``, each once. ``before``: the text in front, in which names may be declared, too."""
    found: dict[str, Mutant] = {}
    free = [match.span() for match in _FREE.finditer(code)]
    for begin, end, new in _changes(code, before, python):
        if any(begin < last and end > first and not (begin <= first and last <= end) for first, last in free):
            continue
        changed = code[:begin] + new + code[end:]
        squeezed = "".join(changed.split())
        if squeezed != "".join(code.split()) and squeezed not in found:
            found[squeezed] = Mutant(_what(code, begin, end, new), changed)
    seen: dict[str, int] = {}
    named = []
    for each in found.values():  # the same change at two places of a line
        seen[each.what] = seen.get(each.what, 0) + 1
        named.append(each if seen[each.what] == 1 else each._replace(what=f"{each.what} ({seen[each.what]})"))
    return named


class _Named(Protocol):
    @property
    def what(self) -> str: ...


def some(of: list[Named], most: int) -> list[Named]:
    """At most ``most`` of them, the same ones each time: what must not be left out, and then from everywhere."""

    def rank(i: int) -> tuple[bool, bytes]:
        return not _FIRST.search(of[i].what.split(" in `")[0]), hashlib.sha256(of[i].what.encode()).digest()

    return [of[i] for i in sorted(sorted(range(len(of)), key=rank)[:most])]


def _what(code: str, begin: int, end: int, new: str) -> str:
    line = code.count("\n", 0, begin) + 1
    old = " ".join(code[begin:end].split())
    around = " ".join(code[code.rfind("\n", 0, begin) + 1 : _line_end(code, end)].split())
    where = f" in `{around}`" if around != old else ""
    new = " ".join(new.split())
    return f"line {line}: `{old}` {f'becomes `{new}`' if new else 'goes'}{where}"


def _line_end(code: str, at: int) -> int:
    end = code.find("\n", at)
    return len(code) if end < 0 else end


def _changes(code: str, before: str, python: bool) -> Iterator[tuple[int, int, str]]:
    words = [
        _Word(str(match.lastgroup), match.group(), match.start(), match.end())
        for match in _WORDS.finditer(code)
        if match.lastgroup != "skip"
    ]
    yield from _of_words(words, code, before, python)
    yield from _of_calls(words, code)
    yield from (_of_lines(code) if python else _of_statements(words, code))
    yield from _of_conditions(words, code, python)


def _of_words(words: list[_Word], code: str, before: str, python: bool) -> Iterator[tuple[int, int, str]]:
    declared = list(dict.fromkeys(_DECLARED.findall(before + code)))
    wide, pointers = set(_WIDE.findall(before + code)), set(_POINTER.findall(before + code))
    for at, word in enumerate(words):
        last = words[at - 1].text if at else ""
        following = words[at + 1].text if at + 1 < len(words) else ""
        if word.kind == "sign":
            for new in _OTHER_SIGNS.get(word.text, ()):
                yield word.begin, word.end, new
        elif word.kind == "number":
            yield from ((word.begin, word.end, new) for new in _other_numbers(word.text))
        elif word.kind == "name":
            plain = word.text.removeprefix("ep::")
            prefix = word.text[: len(word.text) - len(plain)]
            for new in _OTHER_NAMES.get(plain, ()):
                yield word.begin, word.end, new
            for old, new in _PARTS_OF_NAMES:
                if following == "(" and old in word.text + "_":
                    yield word.begin, word.end, (word.text + "_").replace(old, new).removesuffix("_")
            if following != "(" and word.text not in _KEYWORDS and not _is_type_or_target(last, following, python):
                yield from (
                    (word.begin, word.end, new) for new in _other_values(plain, declared, wide, pointers, python)
                )
            if following == "(" and plain in _OTHER_CALLS:
                end = _closing(words, at + 1)
                for new in _OTHER_CALLS[plain]:
                    yield word.begin, words[end].end, re.sub(r"\b([a-z_]+)\(\)", rf"{prefix}\1()", new)


def _is_type_or_target(last: str, following: str, python: bool) -> bool:
    """A name that is being declared or assigned to, or names a type or a field."""
    if following in ("=", "+=", "-=", "::", "*", "&") and python:
        return following == "="
    return following in ("=", "::", "{") or last in ("struct", "enum", ".", "->", "def", "import", "as", "for", "class")


def _other_numbers(text: str) -> Iterator[str]:
    digits = text.rstrip("fFuUlL" if not text.startswith("0x") else "uUlL")
    suffix = text[len(digits) :]
    if "." in digits or ("e" in digits and not digits.startswith("0x")):
        yield from ("0.0f", "1.0f") if "f" in suffix.lower() else ("0.0", "1.0")
        return
    value = int(digits, 0)
    yield f"{value + 1}{suffix}"
    if value > 0:
        yield f"{value - 1}{suffix}"
    if value > 1:
        yield f"0{suffix}"


def _other_values(name: str, declared: list[str], wide: set[str], pointers: set[str], python: bool) -> Iterator[str]:
    yield f"({name} + 1)"
    if name not in pointers:
        yield f"({name} - 1)"
        yield "0"
    if name in wide and name not in pointers:
        yield f"static_cast<uint32_t>({name})"
    if python and "." in name:
        yield name.rpartition(".")[0]
    others = [each for each in declared if each != name and (each in pointers) == (name in pointers)]
    if name in declared:
        start = declared.index(name)
        for step in range(min(2, len(others))):
            yield others[(start + step) % len(others)]


def _closing(words: list[_Word], opening: int) -> int:
    depth = 0
    for at in range(opening, len(words)):
        depth += words[at].text in "([{" and words[at].kind == "sign"
        depth -= words[at].text in ")]}" and words[at].kind == "sign"
        if depth == 0:
            return at
    return len(words) - 1


def _arguments(words: list[_Word], opening: int, closing: int) -> list[tuple[int, int]]:
    """Begin and end in the text of each argument between two brackets."""
    result, depth, begin = [], 0, opening + 1
    for at in range(opening + 1, closing + 1):
        text = words[at].text if words[at].kind == "sign" else ""
        if at == closing or (text == "," and depth == 0):
            if at > begin:
                result.append((words[begin].begin, words[at - 1].end))
            begin = at + 1
        depth += text in ("(", "[", "{")
        depth -= text in (")", "]", "}")
    return result


def _of_calls(words: list[_Word], code: str) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words[:-1]):
        if word.kind != "name" or words[at + 1].text != "(" or word.text in ("if", "for", "while", "switch", "return"):
            continue
        closing = _closing(words, at + 1)
        given = _arguments(words, at + 1, closing)
        for (begin, end), (next_begin, next_end) in itertools.pairwise(given):
            yield begin, next_end, f"{code[next_begin:next_end]}{code[end:next_begin]}{code[begin:end]}"
        if len(given) > 1:
            yield given[-2][1], given[-1][1], ""  # the last one, where it has a default
        if word.text.endswith("peer_ptr") and given:
            yield word.begin, words[closing].end, code[slice(*given[0])]
        if len(given) == 1 and word.text.endswith("queue_pair"):
            yield word.begin, words[closing].end, code[slice(*given[0])]


def _of_statements(words: list[_Word], code: str) -> Iterator[tuple[int, int, str]]:
    """Statements of C++ that are missing, come twice, or in the wrong order."""
    statements: list[tuple[int, int]] = []  # begin and end in the text, and whether the one before is its neighbour
    begin = 0
    at = 0
    while at < len(words):
        text = words[at].text
        if words[at].kind == "sign" and text in ("{", "}"):
            begin = at + 1
        elif text in ("for", "if", "while") and at == begin and at + 1 < len(words):
            at = _closing(words, at + 1 + (words[at + 1].text == "constexpr"))
            begin = at + 1
        elif text == "else" and at == begin:
            begin = at + 1
        elif text in ("(", "[") and words[at].kind == "sign":
            at = _closing(words, at)
        elif text == ";":
            if at > begin:
                statements.append((words[begin].begin, words[at].end))
            begin = at + 1
        at += 1
    for begin, end in statements:
        if (begin, end) != statements[-1] or not code[begin:end].startswith("return"):
            yield begin, end, ";"  # without its last return, a function has no defined behaviour
        if not _TWICE_IS_ONCE.match(code[begin:end]):
            yield begin, end, f"{{ {code[begin:end]} {code[begin:end]} }}"
    for (begin, end), (next_begin, next_end) in itertools.pairwise(statements):
        between = code[end:next_begin]
        if (
            all(map(_ORDER_COUNTS.search, (code[begin:end], code[next_begin:next_end])))
            and not re.sub(r"//[^\n]*", "", between).strip()
        ):
            yield begin, next_end, f"{code[next_begin:next_end]}{between}{code[begin:end]}"


def _of_lines(code: str) -> Iterator[tuple[int, int, str]]:
    """Statements of Python, one a line, that are missing, come twice, or in the wrong order."""
    lines = [match for match in re.finditer(r"^( *)(\S[^\n]*)$", code, re.MULTILINE) if not match[2].startswith("#")]
    for line in lines:
        if line[2].endswith((":", "(", "[", ",")) or line[2][0] in ")]":
            continue
        yield line.start(2), line.end(2), "pass"
        if not _ASSIGNS.match(line[2]) and not line[2].startswith(("return", "raise", "continue", "break")):
            yield line.start(2), line.end(2), f"{line[2]}; {line[2]}"
    for line, following in itertools.pairwise(lines):
        if _ASSIGNS.match(line[2]) and _ASSIGNS.match(following[2]):
            continue  # they rarely depend on each other, and if so, a name is missing
        if line[1] == following[1] and not line[2].endswith((":", "(", "[", ",")) and not following[2].endswith(":"):
            yield line.start(2), following.end(2), f"{following[2]}\n{line[1]}{line[2]}"


def _of_conditions(words: list[_Word], code: str, python: bool) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words[:-1]):
        if python and word.text in ("if", "while", "elif") and word.kind == "name":
            end = _line_end(code, word.end)
            if code[:end].rstrip().endswith(":"):
                condition = code[word.end : end].strip().removesuffix(":")
                yield from ((word.end, end, f" {new}:") for new in ("True", "False", f"not ({condition})"))
        elif not python and word.text in ("if", "while") and words[at + 1].text == "(":
            closing = _closing(words, at + 1)
            begin, end = words[at + 1].end, words[closing].begin
            yield from ((begin, end, new) for new in ("true", "false", f"!({code[begin:end]})"))
        elif word.text == "return" and words[at + 1].text not in (";", "{"):
            end = (
                _line_end(code, word.end)
                if python
                else next((each.begin for each in words[at:] if each.text == ";"), word.end)
            )
            value = code[word.end : end].strip()
            if value in ("true", "false", "True", "False", "None", "0"):
                continue
            if python:
                yield from ((word.end, end, f" {new}") for new in ("None", f"not ({value})", "0"))
            else:
                yield from ((word.end, end, f" {new}") for new in ("0", f"!({value})", "true"))
