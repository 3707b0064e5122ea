"""What a class hands in: folders, archives and exports, and what must not be taken from them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ep_lib import processes
from ep_lib.errors import GradingError
from ep_lib.workshop.classroom import handed_in
from ep_lib.workshop.classroom.handed_in import Found, Submission, pieces_in, submissions
from ep_lib.workshop.exercises import find, names

EXERCISE = find("01")
PIECE = EXERCISE.pieces[0]
RING, PROXY_RING = find("05_ring"), find("04_proxy_ring")
ALL = [find(name) for name in names()]
TEMPLATE = (EXERCISE.exercise_dir / PIECE).read_bytes()


def put(path: Path, data: bytes = b"// mine\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def zipped(**files: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return memory.getvalue()


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return memory.getvalue()


def collected(place: Path) -> dict[str, Submission]:
    return {each.learner: each for each in submissions(place, ALL)}


def of_one(place: Path) -> Found:
    (submission,) = submissions(place, [EXERCISE])
    return pieces_in(submission, EXERCISE)


def test_folders_archives_and_single_files_of_learners(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "some" / "where" / PIECE)
    put(tmp_path / "bob smith.zip", zipped(**{f"hw/{PIECE}": b"// zip\n"}))
    put(tmp_path / "张.tar.gz", tarred((tarfile.TarInfo(f"./{PIECE}"), b"// tar\n")))
    put(tmp_path / "dora_write_signal.cuh", b"// file\n")
    put(tmp_path / "empty.zip", zipped())
    put(tmp_path / ".hidden" / PIECE)
    put(tmp_path / "__MACOSX" / PIECE)
    found = collected(tmp_path)
    assert list(found) == ["ada", "bob smith", "dora", "empty", "张"]
    data = {learner: pieces_in(each, EXERCISE).files for learner, each in found.items()}
    assert [next(iter(each.values()), None) for each in data.values()] == [
        *(b"// mine\n", b"// zip\n", b"// file\n", None, b"// tar\n")
    ]


AS_ZIP = zipped(**{f"mine/01_write_signal/{PIECE}": b"// in a zip\n"})
AUTHORS = """---
submission_101:
  :submitters:
  - :name: Jane Doe
    :sid: '3031'
    :email: jane@uni.example
  :created_at: 2026-11-27 17:25:30.123 Z
  :history:
  - :id: 99
submission_102:
  :submitters:
  - :name: "Li, Jo"
    :email: jo@uni.example
  - :name: Zoë
    :sid: '3033'
"""
FORMS = {  # entries of exports, and whose they are: name/id/e-mail/whether it is late
    "Canvas": {
        "doejane_123_45678_write_signal.cuh": ["doejane/123//"],
        "doejane_123_45679_ring-1.cuh": ["doejane/123//"],
        "léo_LATE_1234_56789_file.zip": ["léo/1234//late"],
        "texter_124_text.html": ["texter/124//"],
    },
    "Moodle": {
        "Jane Doe_1234567_assignsubmission_file_/write_signal.cuh": ["Jane Doe/1234567//"],
        "张_12_assignsubmission_file_/a.zip": ["张/12//"],
        "Al_B_13_assignsubmission_onlinetext_/onlinetext.html": ["Al_B/13//"],
    },
    "Moodle without folders": {
        "Eve Li_4711_assignsubmission_file_write_signal.cuh": ["Eve Li/4711//"],
        "Eve Li_4711_assignsubmission_file_ring.cuh": ["Eve Li/4711//"],
        "Kim_12_assignsubmission_file_mine.zip": ["Kim/12//"],
    },
    "Gradescope": {
        "submission_101/write_signal.cuh": ["Jane Doe/3031/jane@uni.example/"],
        "submission_102/mine.zip": ["Li, Jo//jo@uni.example/", "Zoë/3033//"],
    },
    "workshop-submissions": {  # a git classroom's clones
        f"workshop-ada/mine/01_write_signal/{PIECE}": ["ada///"],
        "workshop-a-b/README.md": ["a-b///"],
    },
    "folders": {f"ada/mine/{PIECE}": ["ada///"], f"bob smith/{PIECE}": ["bob smith///"]},
}


@pytest.mark.parametrize("form", FORMS)
def test_exports_of_platforms(tmp_path: Path, form: str) -> None:
    """What a learner is called depends on no other entry, and on no folder around all of them."""
    parts = [{path: whose} for path, whose in FORMS[form].items()]
    for number, entries in enumerate([FORMS[form], *parts]):
        files = {path: AS_ZIP if path.endswith("zip") else b"// mine\n" for path in entries}
        files |= {"readme.txt": b"of a course", "grades.csv": b"of a course"}
        files |= {"submission_metadata.yml": AUTHORS.encode()} if form == "Gradescope" else {}
        place = tmp_path / str(number)
        for path, data in files.items():
            put(place / form / path, data)
        put(place / "flat" / f"{form}.zip", zipped(**files))
        put(place / "any.zip", zipped(**{f"{form}/{path}": data for path, data in files.items()}))
        for where in (place / form, place / "flat" / f"{form}.zip", place / "any.zip" / form):
            found = list(submissions(where, ALL))
            said = {f"{each.learner}/{each.id}/{each.email}/{'late' * each.is_late}" for each in found}
            assert said == {one for whose in entries.values() for one in whose}, where
            has_answers = [path for path in entries if path.endswith(("zip", "signal.cuh"))]
            assert bool(has_answers) == any(pieces_in(each, EXERCISE).files for each in found)
            assert not any(each.problems for each in found)
        if len(entries) > 1 or form not in ("folders", "workshop-submissions"):
            assert {each.learner for each in submissions(place / "any.zip", ALL)} == {each.learner for each in found}


def test_the_date_of_a_clone_says_nothing(tmp_path: Path) -> None:
    put(tmp_path / "ada" / ".git" / "HEAD")
    for name in ("ada", "bob"):
        put(tmp_path / name / PIECE)
    assert [bool(pieces_in(each, EXERCISE).modified) for each in collected(tmp_path).values()] == [False, True]


def test_names_all_in_capitals_are_taken(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "RING (1).CUH")
    put(tmp_path / "BOB_Write_Signal.CUH")
    found = collected(tmp_path)
    assert list(found) == ["BOB", "ada"]
    assert pieces_in(found["ada"], RING).files and pieces_in(found["BOB"], EXERCISE).files


def test_copies_of_a_browser(tmp_path: Path) -> None:
    for name in ("ada_08_fp8_and_low_latency", "max_01_write_and_signal (1)", "x_12_y_01_write_and_signal"):
        put(tmp_path / f"{name}.ipynb", b"{}")
    put(tmp_path / "ada_ring (2).cuh")
    found = collected(tmp_path)
    assert list(found) == ["ada", "max", "x_12_y"] and pieces_in(found["ada"], RING).files
    assert [each.problems for each in found.values()] == [[]] * 3  # several files of one learner are nothing to look at


@pytest.mark.parametrize(
    "name",
    [  # a semester, a course, a group, a date
        *("ws_2026_27_ada/", "ml_2026_45671_ada/", "EP_2026_11_ada.zip", "EP_2026_20261130_ada.zip"),
    ],
)
def test_a_name_that_only_looks_like_canvas_is_the_learners(tmp_path: Path, name: str) -> None:
    put(tmp_path / name / PIECE if name.endswith("/") else tmp_path / name, AS_ZIP)
    assert list(collected(tmp_path)) == [name.rstrip("/").removesuffix(".zip")]


def test_a_folder_around_all_of_an_archive(tmp_path: Path) -> None:
    ada, bob = f"ada/mine/01_write_signal/{PIECE}", f"bob/mine/01_write_signal/{PIECE}"
    for paths, learners in (([ada], ["ada"]), ([ada, bob], ["ada", "bob"])):
        put(tmp_path / "class.zip", zipped(**dict.fromkeys(paths, b"// mine\n")))
        assert list(collected(tmp_path / "class.zip")) == learners
        put(tmp_path / "class.zip", zipped(**{f"class/{name}": b"// mine\n" for name in paths}))
        assert list(collected(tmp_path / "class.zip")) == learners
    put(tmp_path / "class.zip", zipped(**{f"ada/homework/{PIECE}": b""}))
    with pytest.raises(GradingError, match="nothing but the folder 'ada': if that holds the learners' folders, give"):
        collected(tmp_path / "class.zip")
    assert list(collected(tmp_path / "class.zip" / "ada")) == ["homework"]
    with pytest.raises(GradingError, match="no folder bob in"):
        collected(tmp_path / "class.zip" / "bob")
    put(tmp_path / "unpacked" / "mine" / "01_write_signal" / PIECE)
    put(tmp_path / "unpacked" / "bob" / PIECE)
    found = collected(tmp_path / "unpacked")
    assert list(found) == ["bob", "(mine)"] and not found["(mine)"].files
    assert "mine is a folder of the course, and no name" in found["(mine)"].problems[0]


def test_who_is_in_the_gradebook_keeps_the_name_that_is_there(tmp_path: Path) -> None:
    put(tmp_path / "Ada_1_assignsubmission_file_" / PIECE)
    (first,) = submissions(tmp_path, ALL)
    known = {first.place: first.learner}
    assert known == {"Ada_1": "Ada"}
    put(tmp_path / "Ada_2_assignsubmission_file_" / PIECE)
    assert list(collected(tmp_path)) == ["Ada (1)", "Ada (2)"]
    both = {each.place: each.learner for each in submissions(tmp_path, ALL, known)}
    assert both == {"Ada_1": "Ada", "Ada_2": "Ada (2)"}
    put(tmp_path / "next" / "Ada_17_assignsubmission_file_" / PIECE)
    assert [each.learner for each in submissions(tmp_path / "next", ALL, both)] == ["Ada (17)"]  # which of the two?


def test_names_that_are_no_text_stay_those_of_different_learners(tmp_path: Path) -> None:
    for name in (b"J\xf6rg", b"J\xfcrg"):
        put(Path(os.fsdecode(os.fsencode(tmp_path / "class") + b"/" + name)) / PIECE)
    put(tmp_path / "class" / "tab\t" / PIECE)
    put(tmp_path / "class" / "tab\r" / PIECE)
    members = [
        (tarfile.TarInfo(os.fsdecode(b"class/J" + byte + b"rg/" + PIECE.encode())), byte) for byte in (b"\xf6", b"\xfc")
    ]
    put(tmp_path / "class.tar.gz", tarred(*members))
    assert list(collected(tmp_path / "class")) == ["J\\xf6rg", "J\\xfcrg", "tab\\x09", "tab\\x0d"]
    found = collected(tmp_path / "class.tar.gz")
    assert list(found) == ["J\\xf6rg", "J\\xfcrg"]
    assert [pieces_in(each, EXERCISE).files for each in found.values()] == [{PIECE: b"\xf6"}, {PIECE: b"\xfc"}]
    assert handed_in.readable("J\\xf6rg") == handed_in.readable("J\udcf6rg"), "as --regrade and --times name them"


def test_two_places_of_one_learner_are_named(tmp_path: Path) -> None:
    put(tmp_path / "ada" / PIECE)
    put(tmp_path / "ada.zip", zipped(**{"ring.cuh": b"// zip\n"}))
    assert "2 places are taken for one learner's: ada, ada.zip" in collected(tmp_path)["ada"].problems
    names = (f"jos\N{LATIN SMALL LETTER E WITH ACUTE}/{PIECE}", "jose\N{COMBINING ACUTE ACCENT}/ring.cuh")
    put(tmp_path / "x.zip", zipped(**dict.fromkeys(names, b"// mine\n"), **{"bob/ring.cuh": b""}))
    (said,) = collected(tmp_path / "x.zip")["jos\N{LATIN SMALL LETTER E WITH ACUTE}"].problems
    assert "2 places are taken for one learner's" in said


def test_an_archive_of_all_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inner = zipped(**{PIECE: b"// inner\n"})
    whole = {"handed in/ada/work.zip": inner, f"handed in/bob/{PIECE}": b"// bob\n", "handed in/eve/notes.txt": b"?"}
    whole["handed in/max_write_signal.cuh"] = bytes(handed_in.MAX_PIECE_BYTES + 1)
    put(tmp_path / "Handed in (1).zip", zipped(**whole))
    found = collected(Path("Handed in (1).zip"))
    assert list(found) == ["ada", "bob", "eve", "max"]
    assert pieces_in(found["ada"], EXERCISE).files == {PIECE: b"// inner\n"}
    assert not pieces_in(found["eve"], EXERCISE).files
    assert f"more than {handed_in.MAX_PIECE_BYTES} bytes" in pieces_in(found["max"], EXERCISE).problem


def test_which_of_several_files_is_meant(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "exercises" / "01_write_signal" / PIECE, TEMPLATE)
    put(tmp_path / "ada" / "solutions" / "01_write_signal" / PIECE, b"// the solution\n")
    put(tmp_path / "ada" / "ep_lib" / "device" / PIECE, b"// the library\n")
    assert of_one(tmp_path) == Found()  # the whole course, and nothing of their own
    put(tmp_path / "ada" / "old" / PIECE, b"// old\n")
    assert of_one(tmp_path).files == {PIECE: b"// old\n"}
    put(tmp_path / "ada" / "mine" / "01_write_signal" / PIECE, b"// mine\n")
    assert of_one(tmp_path).paths == (f"mine/01_write_signal/{PIECE}",)
    assert of_one(tmp_path).flags == (
        f"graded is mine/01_write_signal/{PIECE}; old/{PIECE} may be meant as well, and differs",
    )
    put(tmp_path / "ada" / "old" / PIECE, b"// mine\n")
    assert of_one(tmp_path).flags == ()


def test_two_candidates_are_named_and_none_is_chosen(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "first" / PIECE, b"// one\n")
    put(tmp_path / "ada" / "again" / PIECE, b"// two\n")
    put(tmp_path / "ada" / "given" / PIECE, TEMPLATE)  # is nobody's answer
    assert of_one(tmp_path).problem == (
        f"several files may be {PIECE}: again/{PIECE}, first/{PIECE}; hand in one of them"
    )
    put(tmp_path / "ada" / "again" / PIECE, b"// one\n")
    assert of_one(tmp_path).files == {PIECE: b"// one\n"}
    assert of_one(tmp_path).flags == (f"graded is again/{PIECE}; given/{PIECE} is as the exercise was given",)


def test_a_name_of_two_spellings_of_unicode_is_one_learner(tmp_path: Path) -> None:
    put(tmp_path / "jos\N{LATIN SMALL LETTER E WITH ACUTE}" / PIECE, b"// one\n")
    other = tmp_path / "jose\N{COMBINING ACUTE ACCENT}"
    put(other / PIECE, b"// one\n")
    (learner,) = collected(tmp_path).values()
    assert len(learner.learner) == 4 and pieces_in(learner, EXERCISE).files == {PIECE: b"// one\n"}
    put(other / PIECE, b"// two\n")
    (learner,) = collected(tmp_path).values()
    assert "is there twice, with different content" in pieces_in(learner, EXERCISE).problem


def test_a_ring_is_no_proxy_ring(tmp_path: Path) -> None:
    put(tmp_path / "ada_proxy_ring.cuh")
    submission = collected(tmp_path)["ada"]
    assert pieces_in(submission, PROXY_RING).files and not pieces_in(submission, RING).files


# ---- what must not be taken ------------------------------------------------------------------------------------------
def test_links_fifos_and_large_files_are_said(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    class_ = tmp_path / "class"
    for name, make in (
        ("link", lambda path: path.symlink_to(secret)),
        ("loop", lambda path: path.symlink_to(path)),
        ("fifo", os.mkfifo),
        ("large", lambda path: path.write_bytes(b" " * (handed_in.MAX_PIECE_BYTES + 1))),
    ):
        path = class_ / name / PIECE
        path.parent.mkdir(parents=True)
        make(path)
    (class_ / "ep").mkdir()
    (class_ / "a link to a folder").symlink_to(tmp_path)
    said = {learner: pieces_in(each, EXERCISE).problem for learner, each in collected(class_).items()}
    assert "is a link" in said["link"] and "is a link" in said["loop"]
    assert "no file but a FIFO" in said["fifo"] and f"{handed_in.MAX_PIECE_BYTES + 1} bytes" in said["large"]
    assert "it is a link to" in collected(class_)["a link to a folder"].problems[0]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_archives_cannot_lead_out_or_link(tmp_path: Path) -> None:
    links = [member(f"{kind}/{PIECE}", getattr(tarfile, kind), "/etc/passwd") for kind in ("SYMTYPE", "LNKTYPE")]
    evil = tarred((member(f"../{PIECE}"), b"// out\n"), *((link, b"") for link in links))
    put(tmp_path / "t.tar.gz", evil)
    put(tmp_path / "z.zip", zipped(**{f"a/../../{PIECE}": b"// out\n", f"/{PIECE}": b"// root\n"}))
    put(tmp_path / "all.tar.gz", tarred((member("../out"), b""), (member("t/t.tar.gz"), evil), (links[0], b"")))
    for found in (collected(tmp_path), collected(tmp_path / "all.tar.gz")):
        assert "is no regular file" in pieces_in(found["t"], EXERCISE).problem
        assert "leads out of the archive" in found["t"].problems[0]
    assert "leads out of the archive" in found["(the archive itself)"].problems[0]
    assert "is no regular file" in pieces_in(found["SYMTYPE"], EXERCISE).problem
    (z,) = [each for each in submissions(tmp_path, ALL) if each.learner == "z"]
    assert "leads out of the archive" in z.problems[0] and pieces_in(z, EXERCISE).files == {PIECE: b"// root\n"}
    assert not (tmp_path.parent / PIECE).exists()


def sized(size: int, name: str = "x", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of a tar that says so, and nothing behind it."""
    block = bytearray(member(name, kind).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (size % (1 << 96) | (0 if size < 0 else 1 << 95)).to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def with_pax(**headers: str) -> bytes:
    info = member(PIECE)
    info.pax_headers = headers
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


MANY = sized(1 << 19, "x.ipynb") + bytes(1 << 19)
# What one learner's archives ask for, by kind, and what is said of it: a part of a sentence.
COSTLY: dict[str, tuple[Any, str]] = {
    "tar.gz": (gzip.compress(sized(1 << 47)), "did not end within"),  # reads behind its end
    "2.tar.gz": (gzip.compress(b"").join([b""] * 300_000), "did not end within"),  # empty parts
    "zip": (zipped(**{f"{n}.tar.bz2": bz2.compress(MANY) for n in range(9)}), "more than 1 MiB into files"),
    "4.zip": (zipped(**{f"{n}.ipynb": bytes(1 << 19) for n in range(9)}), "more than 1 MiB into files"),
    "5.zip": (zipped(**{f"{n}/{PIECE}": b"" for n in range(60)}), "more than 50 files"),
    "tar": (sized(2**62), "did not end within"),
    "8.tar": (with_pax(size=str(2**62)), "did not end within"),
    "9.tar.xz": (
        lambda: lzma.compress(sized(1 << 30, kind=tarfile.XHDTYPE) + bytes(1 << 28), preset=0),
        "did not end within",
    ),
    "10.tar": (sized(1 << 30, kind=tarfile.GNUTYPE_LONGNAME), "cannot be unpacked"),
    "11.tar": (sized(512, kind=tarfile.GNUTYPE_SPARSE) + bytes(1536), ""),
    "12.tar": (sized(-512), ""),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_what_costs_too_much_is_that_learners_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    limits = replace(handed_in._OF_A_LEARNER[1], written_bytes=1 << 20, files=50)
    data, said = COSTLY[kind]
    monkeypatch.setattr(handed_in, "_OF_A_LEARNER", (0.25 if "did not end" in said else 60, limits))
    data = data() if callable(data) else data  # which takes seconds
    put(tmp_path / "class" / f"eve.{kind.lstrip('0123456789.')}", data)
    put(tmp_path / "class" / "zoe" / PIECE)
    put(tmp_path / "class.zip", zipped(**{f"zoe/{PIECE}": b"//", f"eve.{kind.lstrip('0123456789.')}": data}))
    for place in (tmp_path / "class", tmp_path / "class.zip"):
        found = collected(place)
        assert list(found) == ["eve", "zoe"] and not pieces_in(found["eve"], EXERCISE).files
        assert len(found["eve"].problems) == (said != "") and said in "".join(found["eve"].problems)
        assert pieces_in(found["zoe"], EXERCISE).files and not found["zoe"].problems


def test_dates_and_depths_that_nothing_has_are_one_learners(tmp_path: Path) -> None:
    info = member(f"ada/{PIECE}")
    info.pax_headers = {"mtime": "nan"}
    deep = f"eve/{'x/' * 40}{PIECE}"
    with tarfile.open(tmp_path / "class.tar.gz", "w:gz") as archive:
        for each in (info, member(deep), member(f"zoe/{PIECE}")):
            archive.addfile(each)
    found = collected(tmp_path / "class.tar.gz")
    assert list(found) == ["ada", "eve", "zoe"] and pieces_in(found["ada"], EXERCISE).modified == ""
    assert "folders in each other" in pieces_in(found["eve"], EXERCISE).problem
    assert pieces_in(found["zoe"], EXERCISE).files


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_of_zip_that_unpack_at_once_are_read_within_limits(tmp_path: Path, method: int) -> None:
    for name, size in (("ada", 9), ("eve", 1 << 21)):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", method) as archive:
            archive.writestr(PIECE, bytes(size))
    found = {learner: pieces_in(each, EXERCISE) for learner, each in collected(tmp_path).items()}
    assert found["ada"].files and f"more than {handed_in.MAX_PIECE_BYTES} bytes" in found["eve"].problem


@pytest.mark.parametrize("seed", range(2))
def test_many_broken_archives_are_a_row_each_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    for number in range(40):
        name, whole = [("zip", AS_ZIP), ("tar.gz", tarred((member(PIECE), b"// mine\n")))][number % 2]
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        put(tmp_path / "class" / f"{number}.{name}", bytes(data[: rng.randrange(len(data)) if number % 3 else None]))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before = set(processes.descendants(os.getpid()))
    assert list(collected(tmp_path / "class")) == sorted(map(str, range(40)))
    assert not list((tmp_path / "tmp").iterdir())
    assert len(set(processes.descendants(os.getpid())) - before) <= 1  # the zygote


def test_many_problems_of_one_learner_are_a_few_sentences(tmp_path: Path) -> None:
    put(tmp_path / "eve.zip", zipped(**{f"../{number}{'x' * 999}": b"" for number in range(40)}))
    (eve,) = collected(tmp_path).values()
    assert len(eve.problems) == 21 and max(map(len, eve.problems)) < 500 and eve.problems[-1] == "and more of that kind"


def test_what_is_too_large_or_too_deep_is_said(tmp_path: Path) -> None:
    put(tmp_path / "long.zip", zipped(**{PIECE: bytes(handed_in.MAX_PIECE_BYTES + 1)}))
    nested = zipped(**{PIECE: b"// deep\n"})
    for _ in range(4):
        nested = zipped(**{"inner.zip": nested})
    put(tmp_path / "nested.zip", nested)
    found = collected(tmp_path)
    assert f"more than {handed_in.MAX_PIECE_BYTES} bytes" in pieces_in(found["long"], EXERCISE).problem
    assert "are not opened" in found["nested"].problems[0]


def test_dates_inside_of_a_learners_archive_are_not_believed(tmp_path: Path) -> None:
    old = zipfile.ZipInfo(PIECE, (1999, 1, 1, 0, 0, 0))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(old, b"// early\n")
    put(tmp_path / "class" / "ada.zip", inner.getvalue())
    put(tmp_path / "class.zip", zipped(**{"ada.zip": inner.getvalue(), "bob.zip": b""}))
    for place in (tmp_path / "class", tmp_path / "class.zip"):
        modified = pieces_in(collected(place)["ada"], EXERCISE).modified
        assert modified and not modified.startswith("1999")


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tar", "x.tar.xz", "x.rar", "x.7z"])
def test_a_broken_archive_is_one_sentence(tmp_path: Path, name: str) -> None:
    whole = zipped(**{PIECE: b"// mine\n" * 99}) if name == "x.zip" else tarred((member(PIECE), os.urandom(9999)))
    for data in (b"", b"\x00" * 99, b"Rar!\x1a\x07\x01\x00", whole[: len(whole) // 2]):
        put(tmp_path / name, data)
        (submission,) = submissions(tmp_path, [EXERCISE])
        assert not pieces_in(submission, EXERCISE).files
        assert "pack it as zip and hand it in again" in submission.problems[0]


def test_an_encrypted_archive_is_said(tmp_path: Path) -> None:
    data = bytearray(zipped(**{PIECE: b"// mine\n"}))
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + at] |= 1
    put(tmp_path / "x.zip", bytes(data))
    assert "encrypted" in of_one(tmp_path).problem


def test_no_place_of_submissions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GradingError, match="no folder"):
        list(submissions(tmp_path / "nowhere", ALL))
    put(tmp_path / "x.zip", b"nothing")
    with pytest.raises(GradingError, match="cannot be unpacked"):
        list(submissions(tmp_path / "x.zip", ALL))


def test_names_that_steer_a_terminal_are_made_plain(tmp_path: Path) -> None:
    put(tmp_path / "a\x1b[2J\n" / PIECE)
    put(tmp_path / "b_\udcff" / PIECE)
    found = collected(tmp_path)
    assert all(learner.isprintable() for learner in found) and len(found) == 2
    assert all(pieces_in(each, EXERCISE).files for each in found.values())
    assert all(isinstance(path, PurePosixPath) for each in found.values() for path in each.files)
