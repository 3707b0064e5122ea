"""The gradebook: it only grows, several graders and a full disk lose nothing, and its views count what should count."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ep_lib import processes
from ep_lib.errors import GradingError
from ep_lib.workshop.classroom import gradebook
from ep_lib.workshop.classroom import gradebook_views as views
from ep_lib.workshop.classroom.gradebook import (
    ANY_EXERCISE,
    BEST,
    EXTENSION,
    LATE_DAYS,
    WEIGHT,
    Book,
    HandedIn,
    LateRule,
    Standing,
    a_time,
)


def record(*points: float, problem: str = "", message: str = "the wait returned too early") -> dict[str, Any]:
    """As ``ep-lib grade --json`` prints it: tasks of two points each."""
    tasks = [
        {
            **{"task": number, "title": f"title {number}", "points": each, "of": 2, "passed": each == 2},
            **{"failed_behaviour": None if each == 2 else "it waits", "message": None if each == 2 else message},
        }
        for number, each in enumerate(points, 1)
    ]
    about = {"schema": 1, "mine": "in/ada", "seconds": 1.5, "seed": 7, "flags": []}
    return {**about, "points": sum(points), "of": 2 * len(points), "problem": problem or None, "tasks": tasks}


ERROR = {"schema": 1, "exercise": "01", "mine": "in/ada", "error": "no file"}


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with Book(tmp_path / "class.db") as opened:
        yield opened


def one(book: Book, count: str = "latest") -> Standing:
    (standing,) = book.standings(count)
    return standing


def test_an_attempt_is_there_after_the_book_was_closed(tmp_path: Path) -> None:
    with Book(tmp_path / "class.db") as book:
        assert book.append("Žofie 张", "01", "d1", "v1", record(2, 0), submitted="2026-01-01T00:00:00+00:00")
    with Book(tmp_path / "class.db") as book:
        found = one(book)
        assert (found.learner, found.points, found.of, found.state, found.seed) == ("Žofie 张", 2, 4, "graded", 7)
        assert [(task.points, task.message) for task in found.tasks] == [(2, ""), (0, "the wait returned too early")]
        assert book.is_graded("Žofie 张", "01", "d1", "v1")
        assert not book.is_graded("Žofie 张", "01", "d2", "v1") and not book.is_graded("Žofie 张", "01", "d1", "v2")


def test_a_new_book_is_for_its_user_alone(tmp_path: Path) -> None:
    with Book(tmp_path / "class.db") as book:
        book.append("ada", "01", "d1", "v1", record(2))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {0o600}, modes
    (tmp_path / "class.db").chmod(0o660)  # an instructor who shares it with a group
    with Book(tmp_path / "class.db"):
        assert (tmp_path / "class.db").stat().st_mode & 0o777 == 0o660


def test_the_same_submission_is_one_attempt_unless_it_is_another_round(book: Book) -> None:
    assert book.append("ada", "01", "d1", "v1", record(2, 0))
    assert not book.append("ada", "01", "d1", "v1", record(2, 2))  # another grader was quicker
    assert one(book).points == 2
    assert book.append("ada", "01", "d1", "v1", record(2, 2), round=book.rounds("ada", "01"))
    assert (one(book).points, one(book).attempts) == (4, 2)


def test_nothing_in_it_can_be_changed_or_deleted(book: Book, tmp_path: Path) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 0))
    book.give("ada", "01", 2, 1, "half right")
    book.set_deadline("01", a_time("2026-01-01"), LateRule(10, "day"))
    book.hand_in([HandedIn("ada", "01", "d1")])
    other = sqlite3.connect(tmp_path / "class.db")
    for table in ("attempts", "tasks", "by_hand", "deadlines", "marks", "handed_in"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET exercise = 'x'" if table != "tasks" else ""):
            if statement:
                with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                    other.execute(statement)
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        other.execute("UPDATE tasks SET points = 2")
    for replace in ("INSERT OR REPLACE INTO", "REPLACE INTO", "INSERT OR IGNORE INTO"):
        for columns in ("*", "rowid, *"):
            for table in ("attempts", "tasks", "by_hand", "deadlines", "marks", "handed_in"):
                names = [row[1] for row in other.execute(f"PRAGMA table_info({table})")]
                into = f"{table} ({', '.join(['rowid'] * (columns != '*' and 'id' not in names) + names)})"
                what = columns if "id" not in names else "*"
                with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                    other.execute(f"{replace} {into} SELECT {what} FROM {table}")
    graded = "learner, exercise, digest, library, round, state, points, problem, flags, source, submitted, graded_at"
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        other.execute(f"REPLACE INTO attempts ({graded}, seconds, grader) SELECT {graded}, 9, '' FROM attempts")
    other.close()
    assert one(book).points == 3


def test_what_was_graded_counts_before_what_was_not(book: Book) -> None:
    assert book.append("ada", "01", "d1", "v1", ERROR)
    assert not book.append("ada", "01", "d1", "v1", ERROR)  # the same again says nothing new
    assert one(book).problem == "no file" and one(book).points is None
    book.append("ada", "01", "d2", "v1", record(2, 0))
    assert one(book).points == 2
    book.append("ada", "01", "d3", "v1", {**ERROR, "error": "machine too busy"})
    assert one(book).points == 2 and one(book).flags == ("a later one was not graded: machine too busy",)


def test_the_latest_attempt_counts_or_the_best(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 2))
    book.append("ada", "01", "d2", "v1", record(0, 2))
    assert one(book).points == 2
    assert one(book, "best").points == 4


def test_points_by_hand_survive_a_regrade_and_can_be_taken_back(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 0))
    book.give("ada", "01", 2, 1.5, "right but for a typing error")
    assert (one(book).points, one(book).tasks[1].note) == (3.5, "right but for a typing error")
    book.append("ada", "01", "d1", "v2", record(0, 0))
    assert one(book).points == 1.5
    book.give("ada", "01", None, 4, "shown at the desk")
    assert (one(book).points, one(book).note) == (4, "shown at the desk")
    book.give("ada", "01", None, None, "a mistake of mine")
    book.give("ada", "01", 2, None, "a mistake of mine")
    assert one(book).points == 0


@pytest.mark.parametrize("version", range(1, len(gradebook._STEPS)))
def test_a_book_of_an_earlier_version_is_used_on(version: int, tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "old.db")
    for statement in itertools.chain(*gradebook._STEPS[:version]):
        old.execute(statement)
    old.execute(f"PRAGMA user_version = {version}")
    for digest in ("d1", "d2"):
        old.execute(
            "INSERT INTO attempts (learner, exercise, digest, library, round, state, points, of, problem, flags, "
            "source, submitted, graded_at, seconds, grader) VALUES ('ada', '01', ?, 'v1', 0, 'graded', 4, 4, '', '[]', "
            "'in', '2026-03-03T12:00:00+00:00', '', 1, '')",
            (digest,),
        )
    old.commit()
    old.close()
    for _ in range(2):
        with Book(tmp_path / "old.db") as book:
            assert (one(book).digest, one(book).not_enforced) == ("d2", ())
            book.hand_in([HandedIn("ada", "01", "d2", "2026-09-09T00:00:00+00:00")])  # nothing new: its date stays
            assert one(book).submitted.startswith("2026-03-03")
    with Book(tmp_path / "old.db") as book:
        book.hand_in([HandedIn("ada", "01", "d1", "2026-04-04T00:00:00+00:00")])
        assert (one(book).digest, one(book).submitted[:10]) == ("d1", "2026-04-04")
        book.hand_in([HandedIn("ada", "01", "d1", id="77", email="ada@x")])
        book.set_rule(WEIGHT, "10", exercise="01")
        assert (one(book).id, one(book).email, one(book).most) == ("77", "ada@x", 10)


def test_late_by_the_platform_is_seen_where_no_date_says_it(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", {**record(2, 2), "flags": [gradebook.BY_THE_PLATFORM]})
    assert (one(book).points, one(book).late) == (4, "late (the platform has marked it as late, not by how much)")
    assert ">4!L<" in views.overview(book.standings())


def test_what_is_full_but_late_is_not_shown_as_half(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 2), submitted="2026-01-02T12:00:00+00:00")
    book.set_deadline("01", a_time("2026-01-01"), LateRule(50))
    assert one(book).points == 2 and 'class="n whole full"' in views.overview(book.standings())


@pytest.mark.parametrize(
    ("learner", "points", "note", "says"),
    [
        ("ada", 1.0, " ", "need a note"),
        ("ada", -1.0, "x", "from 0 on"),
        ("ada", float("nan"), "x", "from 0 on"),
        ("adda", 1.0, "x", "its learners are: ada"),
    ],
)
def test_points_by_hand_are_checked(book: Book, learner: str, points: float, note: str, says: str) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 0))
    with pytest.raises(GradingError, match=says):
        book.give(learner, "01", None, points, note)


def test_being_late_costs_what_the_rule_says(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 2), submitted="2026-03-03T12:00:00+00:00")
    assert (one(book).points, one(book).late) == (4, "")
    book.set_deadline(ANY_EXERCISE, a_time("2026-03-01T11:00:00+00:00"), LateRule.parse("10/day"))
    assert (one(book).points, one(book).taken_off, one(book).late) == (2.8, 1.2, "2.0 days late")
    book.set_deadline("01", a_time("2026-03-03T12:00+00:00"), LateRule.parse("100"))  # of this exercise
    assert one(book).points == 4
    book.set_deadline("01", a_time("2026-03-03T11:00+00:00"), LateRule.parse("100"))
    assert (one(book).points, one(book).late) == (0, "1.0 hours late")
    for deadline, said in (
        ("11:59:59", "1 minute late"),
        ("11:00:01", "60 minutes late"),
        ("10:30:00", "1.5 hours late"),
    ):
        book.set_deadline("01", a_time(f"2026-03-03T{deadline}+00:00"), LateRule.parse("100"))
        assert one(book).late == said
    book.give("ada", "01", None, 3, "was ill")
    assert (one(book).points, one(book).taken_off) == (3, 0)


def test_an_extension_is_a_later_deadline_of_one_learner(book: Book) -> None:
    for learner in ("ada", "bob"):
        for exercise in ("01", "02"):
            book.append(learner, exercise, "d1", "v1", record(2, 2), submitted="2026-03-03T12:00:00+00:00")
    book.set_deadline(ANY_EXERCISE, a_time("2026-03-01T12:00:00+00:00"), LateRule.parse("10/day"))
    book.set_rule(EXTENSION, "2026-03-02T12:00:00+00:00", "ada")
    book.set_rule(EXTENSION, "2026-03-05T12:00:00+00:00", "ada", "02")
    book.set_rule(EXTENSION, "2026-02-01T12:00:00+00:00", "bob", "02")  # before the deadline: nobody's loss
    assert [each.points for each in book.standings()] == [3.6, 4, 3.2, 3.2]
    book.set_rule(EXTENSION, "", "ada", "02")
    assert [each.points for each in book.standings()] == [3.6, 3.6, 3.2, 3.2]


def test_free_days_of_being_late_are_spent_in_the_order_of_the_deadlines(book: Book) -> None:
    for exercise, submitted in (("01", "04T12"), ("02", "03T13"), ("03", "03T12")):
        book.append("ada", exercise, "d1", "v1", record(2, 2), submitted=f"2026-03-{submitted}:00:00+00:00")
    for exercise, deadline in (("01", "03"), ("02", "02"), ("03", "01")):
        book.set_deadline(exercise, a_time(f"2026-03-{deadline}T12:00:00+00:00"), LateRule.parse("10/day"))
    assert [each.points for each in book.standings()] == [3.6, 3.2, 3.2]
    book.set_rule(LATE_DAYS, "3")
    assert [each.points for each in book.standings()] == [4 * 0.9, 4 * 0.9, 4]
    assert book.standings()[1].late == "25.0 hours late, of which 1 free day"
    book.give("ada", "03", None, 4, "was ill")  # takes none of them
    assert [(each.points, each.taken_off) for each in book.standings()] == [(4, 0), (4, 0), (4, 0)]


def test_the_total_is_of_the_best_exercises_in_what_they_weigh(book: Book) -> None:
    for exercise, points in (("01", (2, 2)), ("02", (2, 0)), ("03", (2, 2, 0))):
        book.append("ada", exercise, "d1", "v1", record(*points))
    book.append("bob", "02", "d1", "v1", record(2, 2))
    assert "ada,,,4,2,4,10,14\nbob,,,,4,,4,14\n" in views.totals_csv(views.standings_of(book))
    book.set_rule(WEIGHT, "20", exercise="02")
    book.set_rule(BEST, "2")
    standings = views.standings_of(book)
    assert [(each.share, each.counts) for each in standings] == [(4, True), (10, True), (4, False), (20, True)]
    assert "ada,,,4,2,4,14,26\nbob,,,,4,,20,26\n" in views.totals_csv(standings, book.best)
    assert "All together: 14 of 24 points (the best 2 of 3 count)" in views.feedback_text("ada", standings[:3])
    assert "02: 2 of 4 points (10 of 20 in the total)" in views.feedback_text("ada", standings[:3])
    page = views.overview(standings, best=book.best)
    assert "total of 26" in page and ">(4)</td>" in page and "not among the learner's best 2" in page
    book.set_rule(WEIGHT, "0", exercise="02")  # leaves it out
    book.set_rule(BEST, "0")
    assert "bob,,,,4,,0,10\n" in views.totals_csv(views.standings_of(book), book.best)
    book.append("eve", "01", "d1", "v1", record(0, 0))
    assert ">0 of 10</td><td>01, 03</td>" in re.sub(r" class=\"[^\"]*\"", "", views.overview(views.standings_of(book)))


def test_late_rules_and_times_as_people_write_them() -> None:
    assert LateRule.parse("10 %/day").kept(timedelta(hours=25)) == pytest.approx(0.8)
    assert LateRule.parse("5/hour").kept(timedelta(minutes=1)) == pytest.approx(0.95)
    assert LateRule.parse("30/day").kept(timedelta(days=9)) == 0
    assert LateRule.parse("20").kept(timedelta(0)) == 1
    assert a_time("2026-11-22").astimezone().strftime("%H:%M:%S") == "23:59:59"
    for wrong in ("ten", "-1/day", "101", "10/week"):
        with pytest.raises(GradingError, match="it is a percentage"):
            LateRule.parse(wrong)
    with pytest.raises(GradingError, match="is no time"):
        a_time("tomorrow")


# ---- what goes wrong -------------------------------------------------------------------------------------------------
def test_a_file_that_is_no_gradebook_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, and not a database at all\n" * 40)
    with pytest.raises(GradingError, match="file is not a database"):
        Book(text)
    assert text.read_text().startswith("these are my notes")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(GradingError, match="no gradebook"):
        Book(tmp_path / "other.db")
    with pytest.raises(GradingError, match="cannot be used"):
        Book(tmp_path / "no such folder" / "class.db")


def test_a_full_disk_is_said_and_what_was_kept_stays(book: Book, tmp_path: Path) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 0))
    pages = book._db.execute("PRAGMA page_count").fetchone()[0]
    book._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(GradingError, match="make room on its disk"):
        book.append("bob", "01", "d2", "v1", record(2, 0, message="x" * 50_000))
    assert [each.learner for each in book.standings()] == ["ada"]
    assert "KiB left; make room there" in book._remedy("SQLITE_IOERR_WRITE")  # of the files beside it, on a full disk
    book._db.execute("PRAGMA max_page_count = 100000")
    assert book.append("bob", "01", "d2", "v1", record(2, 0))  # the same command goes on
    with Book(tmp_path / "class.db") as again:
        assert again.learners() == ["ada", "bob"]


@pytest.mark.slow
def test_a_killed_grader_leaves_whole_attempts_only(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from ep_lib.workshop.classroom.gradebook import Book
from test_gradebook import record
book = Book(Path({str(tmp_path / "class.db")!r}))
for number in range(3):
    book.append(f"learner {{number}}", "01", "d", "v1", record(2, 0))
book._db.execute("BEGIN IMMEDIATE")
book._db.execute("INSERT INTO by_hand (learner, exercise, note, at) VALUES ('x', 'x', 'x', 'x')")
os.kill(os.getpid(), 9)
"""
    assert processes.run(processes.python("-c", code), cpu_s=60, idle_s=60).returncode == -9
    with Book(tmp_path / "class.db") as book:
        shutil.copy(tmp_path / "class.db", tmp_path / "copy.db")  # without what is beside it
        with Book(tmp_path / "copy.db") as copy:
            assert copy.standings() == book.standings()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("class")] == ["class.db"]
    with Book(tmp_path / "class.db") as book:
        assert len(book.standings()) == 3 and all(len(each.tasks) == 2 for each in book.standings())
        assert book._db.execute("SELECT count(*) FROM by_hand").fetchone()[0] == 0
        assert book._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.slow
def test_two_graders_write_at_once(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from ep_lib.workshop.classroom.gradebook import Book
from test_gradebook import record
with Book(Path({str(tmp_path / "class.db")!r})) as book:
    print(sum(book.append(f"learner {{number}}", "01", "d", "v1", record(2, 0)) for number in range(40)))
"""
    with processes.guarded() as guard:
        both = [guard.start(processes.python("-c", code), stdout=-1, start_new_session=True) for _ in range(2)]
        added = [int(each.communicate()[0]) for each in both]
    assert sum(added) == 40
    with Book(tmp_path / "class.db") as book:
        assert [each.attempts for each in book.standings()] == [1] * 40


# ---- views -----------------------------------------------------------------------------------------------------------
EVIL = "<script>alert(1)</script>\x1b[2J"


def a_class(book: Book) -> list[Standing]:
    book.append("ada", "01", "d1", "v1", record(2, 2))
    book.append("ada", "02", "d1", "v1", record(2, 0))
    book.append("=cmd()", "01", "d2", "v1", {**record(0, 0, message=EVIL), "flags": ["it reaches for a file"]})
    book.append("bob", "01", "d3", "v1", {**ERROR, "error": f"two files: {EVIL}"})
    book.append("half", "01", "d4", "v1", record(0, 2, problem="x.cuh:3: error: \ud800"))
    book.give("ada", "02", 2, 1, "half & half")
    return views.standings_of(book)


def test_csv_has_a_line_for_each_and_no_formula(book: Book) -> None:
    rows = list(csv.DictReader(io.StringIO(views.grades_csv(a_class(book)))))
    assert [row["learner"] for row in rows] == ["'=cmd()", "ada", "ada", "bob", "half"]
    assert [row["points"] for row in rows] == ["0", "4", "3", "", "2"]
    assert rows[2]["note"] == "task 2: half & half" and rows[0]["flags"] == "it reaches for a file"
    totals = list(csv.DictReader(io.StringIO(views.totals_csv(a_class(book)))))
    assert totals[1] == {"learner": "ada", "id": "", "email": "", "01": "4", "02": "3", "total": "7", "of": "8"}
    assert totals[2]["learner"] == "bob" and not totals[2]["total"], "not graded is not the same as no points"
    assert "\x1b" not in views.grades_csv(a_class(book))


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,01,02
Points Possible,,,,,4,10
ada,7001,,ada@x,,4,5
bob,,,,,,
"""  # GradebookImporter of Canvas wants these five columns, and finds who has no ID by login or name
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,Last modified (grade)
Participant 7001,ada,ada@x,,9,14,Yes,
"""  # Moodle's importgradeslib.php reads Identifier, Grade and Last modified (grade)


def test_platforms_get_the_form_that_they_import(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(2, 2))
    book.append("ada", "02", "d1", "v1", record(2, 0))
    book.append("bob", "01", "d1", "v1", ERROR)
    book.set_rule(WEIGHT, "10", exercise="02")
    book.hand_in([HandedIn("ada", "01", "d1", id="6000"), HandedIn("ada", "02", "d1", id="7001", email="ada@x")])
    standings = views.standings_of(book)
    assert [each.id for each in standings] == ["6000", "7001", ""]  # a number may be of one assignment
    assert views.canvas_csv(standings) == CANVAS and views.moodle_csv(standings) == MOODLE
    assert "Participant 6000,ada,,,4,4," in views.moodle_csv(standings[:1])


def test_the_overview_says_who_needs_help_and_what_failed(book: Book) -> None:
    page = views.overview(a_class(book))
    assert "4 learners, 2 exercises, 4 graded submissions, 1 not graded." in page
    assert "01, task 1</span>: title 1" in page and "2 of 3" in page and "it waits (2 of 2)" in page
    help_list = page[page.index("Who needs help") : page.index("What failed most")]
    assert (
        '<td class="whole">bob</td><td class="n whole">not graded</td><td></td>' in help_list and "ada" not in help_list
    )
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page
    assert page.index("All points") < page.index("Who needs help") < page.index("To look at")
    assert 'median</th><td class="n">2</td><td class="n">2</td><td class="n">3</td>' in page  # of 7, 0, 2 in all
    tenths = re.findall(r'%</td>\n<td class="n">(\d)</td><td><div class="bar" style="width: (\d+)em', page)
    assert tenths == [("1", "30") if tenth in (0, 2, 8) else ("0", "0") for tenth in range(10)]
    assert page.index("total of 8") < page.index('class="turned">01'), (
        "beside the name, and not beyond the screen's edge"
    )


def test_feedback_of_several_exercises_has_a_sum(book: Book) -> None:
    own = [each for each in a_class(book) if each.learner == "ada"]
    assert "Feedback for ada\n\nAll together: 7 of 8 points\n\n01: 4 of 4" in views.feedback_text("ada", own)
    assert "<b>All together: 7 of 8 points</b>" in views.feedback_html("ada", own)
    assert "All together: 4 of 8 points\n" in views.feedback_text("ada", own[:1], 8), "the rest was not handed in"
    (bob,) = [each for each in a_class(book) if each.learner == "bob"]
    assert "All together: 7 of 8 points; 1 not graded\n" in views.feedback_text("ada", [*own, bob])
    broken = dataclasses.replace(bob, problem="stopped at\n    int x = 1 <")
    assert "<pre>stopped at\n    int x = 1 &lt;</pre>" in views.feedback_html("bob", [broken])
    late = [dataclasses.replace(own[0], late="3.0 days late", taken_off=points) for points in (1, 1.5)]
    assert "late: 1 point less." in views.feedback_text("ada", late)
    assert "late: 1.5 points less." in views.feedback_html("ada", late)
    assert "All together" not in views.feedback_text("ada", own[:1]) + views.feedback_text("bob", [bob, bob])


def test_what_is_to_look_at_is_one_line_of_a_learner_with_each_reason(book: Book) -> None:
    for exercise in range(10, 30):
        book.append("ada", str(exercise), "d1", "v1", {**record(2), "flags": ["it reaches for a file"]})
    book.append("bob", "10", "d1", "v1", ERROR)
    book.append("cy", "10", "d1", "v1", record(2, 2))
    book.append("dan", "", "d1", "v1", ERROR)  # of no exercise
    page = views.overview(views.standings_of(book))
    look = page[page.index("To look at") :]
    assert look.count("<details>") == 3 and look.count("it reaches for a file") == 1
    assert "<summary>ada: 1 reason, 20 exercises</summary>" in look and "10, 11, 12, 13, 14, 15, and 14 more" in look
    assert (
        page.count('<a href="#look4">?</a>') == 1
        and '<a href="#look2">?</a>' in page
        and '<ul id="look2"><li>not graded: no file (10)' in look
    )


def test_what_could_not_run_is_one_failure_and_not_one_of_each_task(book: Book) -> None:
    book.append("ada", "01", "d1", "v1", record(0, 0, 0, problem="x.cuh:3: error"))
    book.append("bob", "01", "d2", "v1", record(2, 0, 2))
    page = views.overview(views.standings_of(book))
    assert "2 learners, 1 exercise, 2 graded submissions." in page
    failed = page[page.index("What failed most") :]
    assert "1 of 2 could not run at all" in failed and failed.count("<tr><td>") == 1
    assert '01, task 2</span>: title 2</td><td class="n whole">1 of 1</td>' in failed


def test_a_long_name_is_cut_in_the_overview(book: Book) -> None:
    long = "<a>" * 80
    book.append(long, "01", "d1", "v1", record(0, 0))
    page = views.overview(views.standings_of(book))
    begin = "&lt;a&gt;" * 19 + "&lt;a"
    assert page.count(f'<span title="{"&lt;a&gt;" * 80}">{begin}…</span>') == 2
    assert "&lt;a&gt;" * 21 not in page.replace(f'title="{"&lt;a&gt;" * 80}"', "")


def test_files_of_all_views_and_no_others(book: Book, tmp_path: Path) -> None:
    book.append("a/b", "01", "d5", "v1", record(2, 2))
    out = tmp_path / "out"
    views.write_all(a_class(book), out)
    views.write_all(a_class(book), out)
    learners = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert len(learners) == 5 and learners[:2] == ["=cmd()", "a_b_c14cddc0"]
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        *("overview.html", "grades.csv", "totals.csv", "grades.json")
    }
    assert sorted(path.name for path in (out / "ada").iterdir()) == ["feedback.html", "feedback.txt", "grades.json"]
    text = (out / "ada" / "feedback.txt").read_text()
    assert "02: 3 of 4 points" in text and "1 of 2  title 2 (half & half)" in text and "should hold: it waits" in text
    own = json.loads((out / "=cmd()" / "grades.json").read_text())
    assert [each["points"] for each in own] == [0] and own[0]["flags"] == []  # flags are for the instructor
    for page in out.rglob("*.html"):
        assert "<script" not in page.read_text()


def test_a_page_that_cannot_be_written_is_said_and_keeps_no_other_from_it(book: Book, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "overview.html").mkdir()  # in the way
    with pytest.raises(GradingError, match="cannot be written"):
        views.write_all(a_class(book), tmp_path / "out")
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"overview.html", "grades.csv", "ada", "bob"} <= found and not [name for name in found if name[0] == "."]


def test_every_learner_has_a_folder_of_their_own() -> None:
    names = ["ada", "Ada", "a/b", "a:b", "..", "", "ok.", "x" * 300, "张" * 84 + "?", "Žofie 张"]
    folders = [views.folder_name(name, names) for name in names]
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert all(folder.strip(".") and "/" not in folder and len(folder.encode()) < 200 for folder in folders)
    assert folders[-1] == "Žofie 张"
    assert [views.folder_name(name, names[:2], ["Ada", "x"]) for name in names[:2]] == [folders[0], "Ada"], "was first"
