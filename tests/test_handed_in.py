"""What a class hands in: folders, archives and exports, and what must not be taken from them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from ep_lib.errors import GradingError
from ep_lib.workshop import handed_in
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.handed_in import Found, Submission, pieces_in, submissions

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


def test_moodles_and_canvas_exports_and_clones(tmp_path: Path) -> None:
    moodle, canvas, clones = tmp_path / "moodle", tmp_path / "canvas", tmp_path / "clones"
    put(moodle / "Jane Doe_12345_assignsubmission_file_" / "write_signal.cuh")
    put(moodle / "Jane Doe_777_assignsubmission_file_" / "a.zip", zipped(**{PIECE: b"// other Jane\n"}))
    put(moodle / "Jo_1_assignsubmission_file_" / "write_signal.cuh")
    assert list(collected(moodle)) == ["Jane Doe (12345)", "Jane Doe (777)", "Jo"]
    put(canvas / "doejane_123_45678_write_signal.cuh")
    put(canvas / "doejane_123_45679_ring-1.cuh", b"// ring\n")
    put(canvas / "li_LATE_990_45701_mine.zip", zipped(**{f"mine/01_write_signal/{PIECE}": b"// li\n"}))
    found = collected(canvas)
    assert list(found) == ["doejane", "li"] and found["li"].is_late and not found["doejane"].is_late
    assert pieces_in(found["doejane"], EXERCISE).files and pieces_in(found["doejane"], RING).files
    for name in ("workshop-ada", "workshop-a-b"):
        put(clones / "workshop-submissions" / name / "mine" / "01_write_signal" / PIECE)
        (clones / "workshop-submissions" / name / ".git").mkdir()
    assert list(collected(clones / "workshop-submissions")) == ["a-b", "ada"]
    ada = collected(clones / "workshop-submissions")["ada"]
    assert pieces_in(ada, EXERCISE).modified == ""  # the date of a clone says nothing
    (clones / "workshop-submissions").rename(clones / "all")
    assert list(collected(clones / "all")) == ["workshop-a-b", "workshop-ada"]


def test_names_all_in_capitals_are_taken(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "RING (1).CUH")
    put(tmp_path / "BOB_Write_Signal.CUH")
    found = collected(tmp_path)
    assert list(found) == ["BOB", "ada"]
    assert pieces_in(found["ada"], RING).files and pieces_in(found["BOB"], EXERCISE).files


def test_moodles_files_without_folders_and_copies_of_a_browser(tmp_path: Path) -> None:
    put(tmp_path / "Eve Li_4711_assignsubmission_file_write_signal.cuh")
    put(tmp_path / "Eve Li_4711_assignsubmission_file_ring.cuh")
    put(tmp_path / "Kim_12_assignsubmission_file_mine.zip", zipped(**{PIECE: b"// kim\n"}))
    for name in ("ada_08_fp8_and_low_latency", "max_01_write_and_signal (1)", "x_12_y_01_write_and_signal"):
        put(tmp_path / f"{name}.ipynb", b"{}")
    put(tmp_path / "ada_ring (2).cuh")
    found = collected(tmp_path)
    assert list(found) == ["Eve Li", "Kim", "ada", "max", "x_12_y"]
    assert pieces_in(found["Eve Li"], EXERCISE).files and pieces_in(found["Eve Li"], RING).files
    assert pieces_in(found["Kim"], EXERCISE).files == {PIECE: b"// kim\n"} and pieces_in(found["ada"], RING).files
    assert [each.problems for each in found.values()] == [[]] * 5  # several files of one learner are nothing to look at


@pytest.mark.parametrize(
    "names",
    [
        ("WS_2026_27_ada/", "WS_2026_27_bob/"),  # a semester
        ("ml_2026_45671_ada/", "ml_2026_45672_bob/"),  # folders are nobody's of Canvas
        ("EP_2026_11_ada.zip", "EP_2026_11_bob.zip"),  # a group
        ("EP_2026_20261130_ada.zip", "SS_2027_20261130_bob.zip"),  # a date
        ("WS_2026_45671_ada.zip", "SS_2026_45672_bob.zip"),  # one year
        ("EP_2026_45671_ada.zip", "EP_2026_45672_bob.zip"),  # one course
        ("EP_2026_45671_ada.zip",),
        ("doejane_123_45671_mine.zip", "li_124_45672_mine.zip", "ada.zip"),
        ("doejane_123_45671_mine.zip", "li_124_45672_mine.zip", "ada/"),
    ],
)
def test_names_that_only_look_like_canvas_are_separate_learners(tmp_path: Path, names: tuple[str, ...]) -> None:
    members = {}
    for name in names:
        if name.endswith("/"):
            put(tmp_path / "class" / name / PIECE, name.encode())
            members[f"class/{name}{PIECE}"] = name.encode()
        else:
            members[f"class/{name}"] = zipped(**{PIECE: name.encode()})
            put(tmp_path / "class" / name, members[f"class/{name}"])
    put(tmp_path / "class" / "notes.txt")
    put(tmp_path / "class.zip", zipped(**members))
    for place in (tmp_path / "class", tmp_path / "class.zip"):
        found = [each for learner, each in collected(place).items() if learner != "notes.txt"]
        assert {each.learner for each in found} == {name.rstrip("/").removesuffix(".zip") for name in names}
        assert sorted(pieces_in(each, EXERCISE).files[PIECE] for each in found) == sorted(map(str.encode, names))


def test_who_is_known_by_canvas_stays_so_and_two_archives_are_flagged(tmp_path: Path) -> None:
    for name in ("doejane_123_45671_mine.zip", "doejane_123_45672_more.zip", "li_124_45673_mine.zip"):
        put(tmp_path / name, zipped(**{PIECE: b"// mine\n"}))
    found = collected(tmp_path)
    assert list(found) == ["doejane", "li"] and "2 places are taken for one" in found["doejane"].problems[0]
    put(tmp_path / "ada" / PIECE)
    known = {"doejane_123": "doejane"}
    found = {each.learner: each for each in submissions(tmp_path, ALL, known)}
    assert list(found) == ["ada", "doejane", "li_124_45673_mine"]
    assert "is named as by Canvas, and not all that lies beside it" in found["li_124_45673_mine"].problems[0]


def test_what_a_learner_is_called_depends_on_nobody_else(tmp_path: Path) -> None:
    ada, bob = f"ada/mine/01_write_signal/{PIECE}", f"bob/mine/01_write_signal/{PIECE}"
    for paths, learners in (([ada], ["ada"]), ([ada, bob], ["ada", "bob"])):
        put(tmp_path / "class.zip", zipped(**dict.fromkeys(paths, b"// mine\n")))
        assert list(collected(tmp_path / "class.zip")) == learners
        put(tmp_path / "class.zip", zipped(**{f"class/{name}": b"// mine\n" for name in paths}))
        assert list(collected(tmp_path / "class.zip")) == learners
    put(tmp_path / "class.zip", zipped(**{f"ada/homework/{PIECE}": b""}))
    with pytest.raises(GradingError, match="nothing but the folder 'ada': is that a learner"):
        collected(tmp_path / "class.zip")
    put(tmp_path / "unpacked" / "mine" / "01_write_signal" / PIECE)
    put(tmp_path / "unpacked" / "bob" / PIECE)
    found = collected(tmp_path / "unpacked")
    assert list(found) == ["bob", "(mine)"] and not found["(mine)"].files
    assert "mine is a folder of the course, and nobody's name" in found["(mine)"].problems[0]


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
    assert "2 names that look alike are taken for one" in said


def test_an_archive_of_all_submissions(tmp_path: Path) -> None:
    inner = zipped(**{PIECE: b"// inner\n"})
    whole = {"handed in/ada/work.zip": inner, f"handed in/bob/{PIECE}": b"// bob\n", "handed in/eve/notes.txt": b"?"}
    put(tmp_path / "Handed in (1).zip", zipped(**whole))
    found = collected(tmp_path / "Handed in (1).zip")
    assert list(found) == ["ada", "bob", "eve"]
    assert pieces_in(found["ada"], EXERCISE).files == {PIECE: b"// inner\n"}
    assert not pieces_in(found["eve"], EXERCISE).files


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
    evil = [(member(f"../{PIECE}"), b"// out\n"), (member(f"/{PIECE}"), b"// root\n")]
    put(tmp_path / "t.tar.gz", tarred(*evil, (member(f"l/{PIECE}", tarfile.SYMTYPE, "/etc/passwd"), b"")))
    put(tmp_path / "z.zip", zipped(**{f"a/../../{PIECE}": b"// out\n"}))
    found = collected(tmp_path)
    assert "is no regular file" in pieces_in(found["t"], EXERCISE).problem
    assert len([each for each in found["t"].problems if "leads out of the archive" in each]) == 2
    assert "leads out of the archive" in found["z"].problems[0]
    assert not pieces_in(found["z"], EXERCISE).files
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


def long_list() -> bytes:
    """A zip whose end says twice how long its list of files is: the second time, the truth."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, *[0] * 15)
    listed = entry * (handed_in._MAX_DIRECTORY_BYTES // len(entry) + 1)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(listed), 0)
    end64 += struct.pack("<4sLQL", b"PK\6\7", 0, len(listed), 1)
    return zipped(**{"a.zip": listed + end64 + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), 0, 0)})


HALF = bytes(1 << 19)
TARRED = sized(len(HALF)) + HALF + bytes(1024)
COSTLY = {  # what one learner's archives ask for, by kind, and what is said of it
    "tar.gz": (gzip.compress(sized(1 << 47)), "1 MiB"),  # reads behind its end
    "2.tar.gz": (gzip.compress(sized(3 << 20) + bytes(3 << 20)), "1 MiB"),
    "tar.bz2": (bz2.compress(sized(3 << 20) + bytes(3 << 20)), "1 MiB"),
    "tar.xz": (lzma.compress(sized(3 << 20) + bytes(3 << 20)), "1 MiB"),
    "zip": (zipped(**{f"{n}.tar.bz2": bz2.compress(TARRED) for n in range(3)}), "1 MiB"),  # what is skipped counts
    "4.zip": (zipped(**{f"{n}.ipynb": HALF for n in range(3)}), "1 MiB"),
    "5.zip": (zipped(**{"a.zip": zipped(**{f"{n}.tar": TARRED for n in range(3)})}), "1 MiB"),
    "6.zip": (long_list(), "more than 50 files"),
    "tar": (sized(2**62), "is said to have 4611686018427387904 bytes"),
    "7.tar": (sized(-512), "is said to have -512 bytes"),
    "8.tar": (with_pax(size=str(2**62)), "is said to have 4611686018427387904 bytes"),
    "9.tar": (sized(1 << 30, kind=tarfile.XHDTYPE), "a header of it has 1073741824 bytes"),
    "10.tar": (sized(1 << 30, kind=tarfile.GNUTYPE_LONGNAME), "a header of it has 1073741824 bytes"),
    "11.tar": (sized(512, kind=tarfile.GNUTYPE_SPARSE) + bytes(1536), "is a sparse file"),
    "12.tar": (with_pax(**{"GNU.sparse.map": "0,9", "GNU.sparse.size": "9"}), "is a sparse file"),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_what_costs_too_much_is_that_learners_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(handed_in, "_MAX_UNPACKED_BYTES", 1 << 20)
    monkeypatch.setattr(handed_in, "_MAX_DIRECTORY_BYTES", 1 << 12)
    monkeypatch.setattr(handed_in, "_MAX_ENTRIES", 50)
    data, said = COSTLY[kind]
    put(tmp_path / f"eve.{kind.lstrip('0123456789.')}", data)
    put(tmp_path / "zoe" / PIECE)
    found = collected(tmp_path)
    assert said in found["eve"].problems[0] and len(found["eve"].problems) == 1
    assert pieces_in(found["zoe"], EXERCISE).files


def test_methods_of_zip_that_unpack_at_once_are_not_read(tmp_path: Path) -> None:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr(PIECE, b"// mine\n")
    put(tmp_path / "eve.zip", memory.getvalue())
    assert "packed by method 12 of zip; pack it anew" in of_one(tmp_path).problem


@pytest.mark.parametrize("kind", ["entries", "empty parts"])
def test_reading_takes_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(handed_in, "_MAX_CPU_S", -1.0)
    data = zipped(x=b"") if kind == "entries" else gzip.compress(b"") * 9
    put(tmp_path / ("eve.zip" if kind == "entries" else "eve.tar.gz"), data)
    (eve,) = collected(tmp_path).values()
    assert "s of CPU time" in eve.problems[0]


def test_many_problems_of_one_learner_are_a_few_sentences(tmp_path: Path) -> None:
    put(tmp_path / "eve.zip", zipped(**{f"../{number}{'x' * 999}": b"" for number in range(40)}))
    (eve,) = collected(tmp_path).values()
    assert len(eve.problems) == 21 and max(map(len, eve.problems)) < 500 and eve.problems[-1] == "and more of that kind"


def test_bombs_are_refused_without_being_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_in, "_MAX_ENTRIES", 50)
    put(tmp_path / "long.zip", zipped(**{PIECE: bytes(handed_in.MAX_PIECE_BYTES + 1)}))
    put(tmp_path / "many.zip", zipped(**{f"{number}.txt": b"" for number in range(60)}))
    nested = zipped(**{PIECE: b"// deep\n"})
    for _ in range(4):
        nested = zipped(**{"inner.zip": nested})
    put(tmp_path / "nested.zip", nested)
    found = collected(tmp_path)
    assert f"more than {handed_in.MAX_PIECE_BYTES} bytes" in pieces_in(found["long"], EXERCISE).problem
    assert "more than 50 files" in found["many"].problems[0]
    assert "are not opened" in found["nested"].problems[0]


def test_what_is_too_much_of_one_learner_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_in, "_MAX_ENTRIES", 50)
    monkeypatch.setattr(handed_in, "_MAX_KEPT_BYTES", 1 << 20)
    right = zipped(**{PIECE: b"// right\n"})
    many = zipped(**{f"{number}.txt": b"" for number in range(60)})
    bomb = zipped(**{f"{number}.ipynb": bytes(1 << 19) for number in range(4)})
    learners = {"aaron": zipped(a=b"", **{f"{n}.zip": many for n in range(3)}), "ab": bomb, "abe": right, "zoe": right}
    for name, whole in (
        ("class.zip", zipped(**{f"{learner}.zip": data for learner, data in learners.items()})),
        ("class.tar.gz", tarred(*((member(f"class/{learner}/x.zip"), data) for learner, data in learners.items()))),
    ):
        put(tmp_path / name, whole)
        found = collected(tmp_path / name)
        assert list(found) == list(learners)
        assert [len(pieces_in(each, EXERCISE).files) for each in found.values()] == [0, 0, 1, 1]
        assert ["more than 50 files" in text for text in found["aaron"].problems] == [True]
        assert ["more than 1 MiB" in text for text in found["ab"].problems] == [True]
        assert found["abe"].problems == found["zoe"].problems == []


def test_memory_that_one_submission_takes_is_its_own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise MemoryError

    put(tmp_path / "ada.zip", zipped(**{PIECE: b"// mine\n"}))
    put(tmp_path / "bob" / PIECE)
    monkeypatch.setattr(handed_in._Reader, "member", none_left)
    found = collected(tmp_path)
    assert "refused" in found["ada"].problems[0] and pieces_in(found["bob"], EXERCISE).files


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


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tar", "x.tar.xz"])
def test_a_broken_archive_is_one_sentence(tmp_path: Path, name: str) -> None:
    whole = zipped(**{PIECE: b"// mine\n" * 99}) if name == "x.zip" else tarred((member(PIECE), os.urandom(9999)))
    for data in (b"", b"\x00" * 99, b"no archive", whole[: len(whole) // 2]):
        put(tmp_path / name, data)
        (submission,) = submissions(tmp_path, [EXERCISE])
        assert not pieces_in(submission, EXERCISE).files
        assert submission.problems or data in (b"", b"\x00" * 99), data  # of a tar, these are an empty one


def test_an_encrypted_archive_is_said(tmp_path: Path) -> None:
    data = bytearray(zipped(**{PIECE: b"// mine\n"}))
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + at] |= 1
    put(tmp_path / "x.zip", bytes(data))
    (submission,) = submissions(tmp_path, [EXERCISE])
    assert "encrypted" in submission.problems[0]


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
