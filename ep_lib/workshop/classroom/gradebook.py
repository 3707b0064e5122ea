"""The gradebook: one SQLite file that keeps every graded attempt.

Attempts, points given by hand, deadlines, rules and submission times are appended; triggers refuse to change or delete
them. The standings are a view: the attempt at the last submission (or the best one), with points given by hand in place
of a task's, minus the deduction for lateness. Several graders may write at once, from processes of one machine: the
file is in WAL mode, which network file systems do not support. Opening and closing a book merges the file ``-wal``
beside it into the book.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ep_lib.errors import GradingError
from ep_lib.require import one_of

GRADED, NOT_GRADED = "graded", "not graded"
ANY_EXERCISE = "*"  # in place of an exercise, in deadlines and rules
NOTHING = ""  # in place of an exercise: a learner without any files
EXTENSION, LATE_DAYS, BEST, WEIGHT = "extension", "late days", "best", "weight"  # rules: see set_rule
_BUSY_S = 60.0  # a grader's wait for another one's write, which takes milliseconds
_TABLES = """
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, learner TEXT NOT NULL, exercise TEXT NOT NULL,
    digest TEXT NOT NULL, library TEXT NOT NULL, round INTEGER NOT NULL, seed INTEGER,
    state TEXT NOT NULL CHECK (state IN ('graded', 'not graded')), points REAL, of REAL,
    problem TEXT NOT NULL, flags TEXT NOT NULL, source TEXT NOT NULL, submitted TEXT NOT NULL,
    graded_at TEXT NOT NULL, seconds REAL NOT NULL, grader TEXT NOT NULL
);
CREATE UNIQUE INDEX graded_once ON attempts (learner, exercise, digest, library, round) WHERE state = 'graded';
CREATE TABLE tasks (
    attempt INTEGER NOT NULL REFERENCES attempts, task INTEGER NOT NULL, title TEXT NOT NULL,
    points REAL NOT NULL, of REAL NOT NULL, behaviour TEXT NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (attempt, task)
);
CREATE TABLE by_hand (
    id INTEGER PRIMARY KEY, learner TEXT NOT NULL, exercise TEXT NOT NULL, task INTEGER,
    points REAL, note TEXT NOT NULL, at TEXT NOT NULL
);
CREATE TABLE deadlines (
    id INTEGER PRIMARY KEY, exercise TEXT NOT NULL, deadline TEXT NOT NULL, rule TEXT NOT NULL, at TEXT NOT NULL
);
CREATE TABLE marks (
    digest TEXT NOT NULL, exercise TEXT NOT NULL, marks TEXT NOT NULL, PRIMARY KEY (digest, exercise)
);
CREATE VIEW gradebook AS
    SELECT learner, exercise, attempts.id AS attempt, digest, library, round, seed, state, submitted, graded_at,
           seconds, task, title, tasks.points AS points, tasks.of AS of, behaviour, message, problem, flags
    FROM attempts LEFT JOIN tasks ON tasks.attempt = attempts.id;
"""
_NEVER = "BEGIN SELECT RAISE(ABORT, 'a gradebook only grows: nothing in it is changed or deleted'); END"
_OF_ONE = {
    "attempts": "learner exercise digest library round state",
    "tasks": "attempt task",
    "marks": "digest exercise",
}  # the unique columns of tables, besides row numbers


def _kept(*tables: str) -> Iterator[str]:
    for table in tables:
        for what in ("UPDATE", "DELETE"):
            yield f"CREATE TRIGGER {table}_{what} BEFORE {what} ON {table} {_NEVER}"


def _not_replaced(*tables: str) -> Iterator[str]:
    """A trigger against INSERT OR REPLACE, which deletes rows without firing triggers of DELETE."""
    for table in tables:
        same = " AND ".join(f"{each} = NEW.{each}" for each in _OF_ONE.get(table, "rowid").split())
        same += " AND state = 'graded'" if table == "attempts" else ""
        taken = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE {each})" for each in ("rowid = NEW.rowid", same))
        yield f"CREATE TRIGGER {table}_REPLACE BEFORE INSERT ON {table} WHEN {taken} {_NEVER}"


_OF_1 = ("attempts", "tasks", "by_hand", "deadlines", "marks")
# The steps to version 1, from 1 to 2, and so on: an older book is upgraded.
_STEPS = (
    (*_TABLES.split(";\n"), *_kept(*_OF_1)),
    (
        "ALTER TABLE attempts ADD COLUMN not_enforced TEXT NOT NULL DEFAULT '[]'",
        # Each change of the submitted files, including files graded long ago. `place`: the learner's folder or archive.
        # `submitted`: "" if unknown.
        "CREATE TABLE handed_in (id INTEGER PRIMARY KEY, learner TEXT NOT NULL, exercise TEXT NOT NULL, "
        "digest TEXT NOT NULL, submitted TEXT NOT NULL, place TEXT NOT NULL, at TEXT NOT NULL)",
        *_kept("handed_in"),
    ),
    (*_not_replaced(*_OF_1, "handed_in"),),
    (
        "ALTER TABLE handed_in ADD COLUMN platform_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE handed_in ADD COLUMN email TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE rules (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, learner TEXT NOT NULL, "
        "exercise TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL)",
        *(*_kept("rules"), *_not_replaced("rules")),
    ),
)
_AS_THEY_ARE = (
    *("learner", "exercise", "of", "problem", "digest", "library", "seed", "source", "graded_at", "seconds"),
)  # columns of an attempt that a standing has, too
BY_THE_PLATFORM = "the platform has marked it as late"  # a flag
_RULE = re.compile(r"(\d+(?:\.\d+)?)(?:/(hour|day))?")


@dataclass(frozen=True)
class TaskStanding:
    """A task's counting points: the tests', or those given by hand."""

    task: int
    title: str
    points: float
    of: float
    behaviour: str = ""
    message: str = ""
    note: str = ""  # of points given by hand

    @property
    def full(self) -> bool:
        return self.points >= self.of


@dataclass(frozen=True)
class Standing:
    """The counting result of one learner in one exercise. ``points`` is None if nothing was graded; ``problem`` gives
    the reason."""

    learner: str
    exercise: str
    points: float | None
    of: float | None
    tasks: tuple[TaskStanding, ...] = ()
    problem: str = ""
    flags: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()  # walls that the grader's machine could not enforce
    attempt: int = 0
    attempts: int = 0
    digest: str = ""
    library: str = ""
    seed: int | None = None
    source: str = ""
    submitted: str = ""
    graded_at: str = ""
    seconds: float = 0.0
    taken_off: float = 0.0  # points deducted for lateness
    late: str = ""  # "2 days late", or the platform's mark; "" if in time or unknown
    note: str = ""  # of points given by hand for the whole exercise
    same_as: tuple[str, ...] = field(default=())
    id: str = ""  # the platform's id of the learner; "" if unknown
    email: str = ""
    weight: float | None = None  # the value of full points in the total; None: the points themselves
    counts: bool = True  # whether it is among the best ones, which the total sums

    @property
    def most(self) -> float | None:
        """Its largest contribution to the total."""
        return self.of if self.weight is None else self.weight

    @property
    def share(self) -> float | None:
        """Its contribution to the total, if it counts."""
        if self.points is None or self.weight is None or not self.of:
            return self.points
        return self.points / self.of * self.weight

    @property
    def state(self) -> str:
        return NOT_GRADED if self.points is None else GRADED

    @property
    def is_given(self) -> bool:
        """Whether all points were given by hand, without grading."""
        return self.points is not None and not self.tasks

    @property
    def full(self) -> bool:
        return self.points is not None and self.of is not None and self.points >= self.of


@dataclass(frozen=True)
class HandedIn:
    """A learner's submitted files for an exercise: their ``digest``, and the submission's ``place``."""

    learner: str
    exercise: str
    digest: str
    submitted: str = ""  # ISO 8601, UTC; "" if unknown
    place: str = ""
    is_told: bool = False  # the date was given explicitly (`--times`)
    id: str = ""  # the platform's id of the learner
    email: str = ""


@dataclass(frozen=True)
class LateRule:
    """The deduction for lateness: ``percent`` of the points, once or for each started ``unit`` ("hour", "day")."""

    percent: float
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> LateRule:
        """ "10/day", "5/hour", "100". Raises GradingError."""
        match = _RULE.fullmatch(text.strip().replace("%", "").replace(" ", ""))
        if match is None or not 0 <= float(match[1]) <= 100:
            raise GradingError(f"the late rule is {text!r}; it is a percentage: 10/day, 5/hour, or 100 for no points")
        return cls(float(match[1]), match[2] or "")

    def __str__(self) -> str:
        return f"{self.percent:g}{self.unit and '/'}{self.unit}"

    def kept(self, late: timedelta) -> float:
        """The fraction of the points that remains."""
        if late <= timedelta(0):
            return 1.0
        units = {"": late, "hour": timedelta(hours=1), "day": timedelta(days=1)}[self.unit]
        return max(0.0, 1 - self.percent / 100 * math.ceil(late / units))


@dataclass(frozen=True)
class Rules:
    """The current rules: deadlines by exercise, and the others by kind, learner and exercise."""

    deadlines: Mapping[str, tuple[datetime, LateRule]]
    others: Mapping[tuple[str, str, str], str]

    def other(self, kind: str, learner: str = "", exercise: str = ANY_EXERCISE) -> str:
        """The value for an exercise: its own, or ANY_EXERCISE's; "" if there is none."""
        return self.others.get((kind, learner, exercise)) or self.others.get((kind, learner, ANY_EXERCISE), "")

    def deadline(self, exercise: str, learner: str = "") -> tuple[datetime, LateRule] | None:
        """The deadline: the exercise's own, or ANY_EXERCISE's; with a learner's extension, the later one."""
        known = self.deadlines.get(exercise) or self.deadlines.get(ANY_EXERCISE)
        later = self.other(EXTENSION, learner, exercise)
        return known if known is None or not later else (max(known[0], datetime.fromisoformat(later)), known[1])


def a_time(text: str) -> datetime:
    """A time in UTC from ISO 8601; a day means its end; without a zone, this machine's counts. Raises GradingError."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise GradingError(f"{text!r} is no time; write 2026-11-22T18:00 or 2026-11-22T18:00+01:00") from error
    if re.fullmatch(r"\d{4}-?\d\d-?\d\d", text.strip()):
        time = time.replace(hour=23, minute=59, second=59)
    return time.astimezone(UTC)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Book:
    """An open gradebook, as a context manager. ``path`` None: in memory only.

    Raises GradingError if the file cannot be opened or written, or is no gradebook. Use it in one thread only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        if path is not None:  # a new one is readable by this user only; SQLite gives files beside it the same mode
            with contextlib.suppress(OSError):  # it exists, or SQLite reports the error
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with self._told():
            self._db = sqlite3.connect(path or ":memory:", timeout=_BUSY_S, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._checkpoint()
        finally:
            self._db.close()

    def _checkpoint(self) -> None:
        """Merges the file ``-wal`` into the book, except parts that others are reading."""
        with self._told():
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # reported grades are on the disk
        with self._writing():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            is_other = version == 0 and self._db.execute("SELECT 1 FROM sqlite_master").fetchone()
            if is_other or version > len(_STEPS):
                raise GradingError(
                    f"{self.path} is a database, but no gradebook of this version of ep_lib: name another file"
                )
            for statement in itertools.chain(*_STEPS[version:]):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {len(_STEPS)}")
        self._checkpoint()  # merges the file -wal of a grader that was killed

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as GradingError, with what to do."""
        try:
            yield
        except sqlite3.Error as error:
            remedy = self._remedy(getattr(error, "sqlite_errorname", ""))
            raise GradingError(
                f"the gradebook {self.path} cannot be used ({error}): {remedy}. What is in it stays; the same command "
                "goes on where it stopped"
            ) from error

    def _remedy(self, error: str) -> str:
        if error == "SQLITE_BUSY":
            return "another program keeps it locked: end that"
        if error == "SQLITE_FULL":
            return "make room on its disk"
        look = "look at the file and its folder, or name another"
        if error.startswith("SQLITE_IOERR") and self.path is not None:  # also a full disk, for the files beside it
            with contextlib.suppress(OSError):
                free = shutil.disk_usage(self.path.parent).free
                return f"its disk has {free >> 10} KiB left; make room there if that is little, or else {look}"
        return look

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._told():
            return self._db.execute(query, values).fetchall()

    # ---- appending -------------------------------------------------------------------------------------------------
    def is_graded(self, learner: str, exercise: str, digest: str, library: str, round: int | None = None) -> bool:
        """Whether this submission was graded by this version of the library, in this round or in any."""
        found = self._rows(
            "SELECT 1 FROM attempts WHERE learner = ? AND exercise = ? AND digest = ? AND library = ? AND state = ? "
            "AND coalesce(round = ?, TRUE)",
            *(learner, exercise, digest, library, GRADED, round),
        )
        return bool(found)

    def hand_in(self, what: Iterable[HandedIn]) -> None:
        """Records the current submissions of learners: they count as the latest, even if graded earlier than others.

        An unchanged submission keeps its date, unless a date is given explicitly: a file's date may be that of a
        download.
        """
        with self._writing():
            graded, known, people = self._last("attempts"), self._last("handed_in"), self._people()
            last_of = self._last_exercise()
            for each in what:
                key = (each.learner, each.exercise)
                last = known.get(key) or graded.get(key)
                submitted = each.submitted
                if last is not None and last[0] == each.digest and not each.is_told:
                    submitted = last[1]
                person = (each.id, each.email)
                is_known = not any(person) or people.get(key) == person
                is_as_before = (last_of.get(each.learner) == NOTHING) == (each.exercise == NOTHING)
                if known.get(key) == (each.digest, submitted) and is_known and is_as_before:
                    continue
                last_of[each.learner] = each.exercise
                known[key] = (each.digest, submitted)
                people[key] = person
                self._db.execute(
                    "INSERT INTO handed_in (learner, exercise, digest, submitted, place, at, platform_id, email) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*key, each.digest, submitted, each.place, _now(), *person),
                )

    def _last(self, table: str) -> dict[tuple[str, str], tuple[str, str]]:
        """Digest and date of the last submission, by learner and exercise."""
        rows = self._db.execute(f"SELECT learner, exercise, digest, submitted FROM {table} ORDER BY id")
        return {(row["learner"], row["exercise"]): (row["digest"], row["submitted"]) for row in rows}

    def _last_exercise(self) -> dict[str, str]:
        """The exercise that was last recorded, by learner; NOTHING if there were no files."""
        return {row["learner"]: row["exercise"] for row in self._rows("SELECT * FROM handed_in ORDER BY id")}

    def _people(self) -> dict[tuple[str, str], tuple[str, str]]:
        """The platform's id and the e-mail address, by learner and exercise, and the last ones by learner and "". A
        platform's ids may be valid for one assignment only."""
        found = {}
        for row in self._rows("SELECT * FROM handed_in WHERE platform_id != '' OR email != '' ORDER BY id"):
            for exercise in (row["exercise"], ""):
                found[row["learner"], exercise] = (row["platform_id"], row["email"])
        return found

    def set_times(self, times: Mapping[str, str], is_meant: Callable[[str], bool] = lambda exercise: True) -> None:
        """Sets the times (ISO 8601) of learners' last submissions in these exercises."""
        last = {**self._last("attempts"), **self._last("handed_in")}
        self.hand_in(
            HandedIn(*key, digest, times[key[0]], is_told=True)
            for key, (digest, _) in last.items()
            if key[0] in times and is_meant(key[1])
        )

    def rounds(self, learner: str, exercise: str) -> int:
        """The number of grading rounds: 0 before the first."""
        found = self._rows(
            "SELECT max(round) AS last FROM attempts WHERE learner = ? AND exercise = ?", learner, exercise
        )
        return 0 if found[0]["last"] is None else int(found[0]["last"]) + 1

    def append(
        self,
        learner: str,
        exercise: str,
        digest: str,
        library: str,
        record: Mapping[str, Any],
        *,
        round: int = 0,
        submitted: str = "",
        marks: Iterable[int] = (),
    ) -> bool:
        """Keeps an attempt: ``record`` is the output of ``ep-lib grade --json``. Returns False if the book already has
        it.

        That happens if another grader had the same submission at the same time, or if grading failed for the same
        reason as last time.
        """
        record = _storable(record)
        error = record.get("error")
        with self._writing():
            if error is None and self.is_graded(learner, exercise, digest, library, round):
                return False
            if error is not None and self._is_repeated(learner, exercise, digest, error):
                return False
            added = self._db.execute(
                "INSERT INTO attempts (learner, exercise, digest, library, round, seed, state, points, of, "
                "problem, flags, not_enforced, source, submitted, graded_at, seconds, grader) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(learner, exercise, digest, library, round, record.get("seed")),
                    *(GRADED if error is None else NOT_GRADED, record.get("points"), record.get("of")),
                    *(error or record.get("problem") or "", _listed(record, "flags"), _listed(record, "not_enforced")),
                    *(record.get("mine", ""), submitted, _now(), record.get("seconds", 0.0), _this_grader()),
                ),
            )
            self._db.executemany(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(added.lastrowid, task["task"], task["title"], task["points"], task["of"]),
                        *(task["failed_behaviour"] or "", task["message"] or ""),
                    )
                    for task in record.get("tasks", ())
                ],
            )
            self._db.execute(
                "INSERT INTO marks SELECT :digest, :exercise, :marks "
                "WHERE NOT EXISTS (SELECT 1 FROM marks WHERE digest = :digest AND exercise = :exercise)",
                {"digest": digest, "exercise": exercise, "marks": json.dumps(sorted(marks))},
            )
        return True

    def _is_repeated(self, learner: str, exercise: str, digest: str, problem: str) -> bool:
        last = self._db.execute(
            "SELECT digest, state, problem FROM attempts WHERE learner = ? AND exercise = ? ORDER BY id DESC LIMIT 1",
            (learner, exercise),
        ).fetchone()
        return last is not None and (last["digest"], last["state"], last["problem"]) == (digest, NOT_GRADED, problem)

    def give(self, learner: str, exercise: str, task: int | None, points: float | None, note: str) -> None:
        """Gives points by hand, for a task or (``task`` None) for the whole exercise; they override later grading.

        ``points`` None withdraws them. Raises GradingError without a note, or for points below zero.
        """
        if not note.strip():
            raise GradingError("points given by hand need a note that says why")
        if points is not None and not 0 <= points < math.inf:
            raise GradingError(f"points are {points}; they must be a number from 0 on")
        if not self._rows("SELECT 1 FROM attempts WHERE learner = ? AND exercise = ?", learner, exercise):
            known = ", ".join(row[0] for row in self._rows("SELECT DISTINCT learner FROM attempts ORDER BY 1 LIMIT 40"))
            raise GradingError(f"the gradebook has no {exercise} of {learner!r}; its learners are: {known or 'none'}")
        with self._writing():
            self._db.execute(
                "INSERT INTO by_hand (learner, exercise, task, points, note, at) VALUES (?, ?, ?, ?, ?, ?)",
                (learner, exercise, task, points, note.strip(), _now()),
            )

    def set_deadline(self, exercise: str, deadline: datetime | None, rule: LateRule) -> None:
        """Sets the deadline, or removes it; ``exercise`` may be ANY_EXERCISE."""
        until = "" if deadline is None else deadline.isoformat()
        values = (exercise, until, json.dumps([rule.percent, rule.unit]))
        last = self._rows(
            "SELECT exercise, deadline, rule FROM deadlines WHERE exercise = ? ORDER BY id DESC", exercise
        )
        if last and tuple(last[0]) == values:
            return
        with self._writing():
            self._db.execute(
                "INSERT INTO deadlines (exercise, deadline, rule, at) VALUES (?, ?, ?, ?)", (*values, _now())
            )

    def set_rule(self, kind: str, value: str, learner: str = "", exercise: str = ANY_EXERCISE) -> None:
        """Sets a rule; ``value`` "" removes it.

        EXTENSION: a learner's deadline in ISO 8601. LATE_DAYS: free days of lateness for each learner, in total. BEST:
        the number of each learner's exercises that count. WEIGHT: the value of an exercise's full points in the total.
        """
        if self.rules().others.get((kind, learner, exercise), "") != value:
            with self._writing():
                self._db.execute(
                    "INSERT INTO rules (kind, learner, exercise, value, at) VALUES (?, ?, ?, ?, ?)",
                    (kind, learner, exercise, value, _now()),
                )

    # ---- views -----------------------------------------------------------------------------------------------------
    def learners(self) -> list[str]:
        return [row[0] for row in self._rows("SELECT DISTINCT learner FROM attempts ORDER BY learner")]

    def places(self) -> dict[str, str]:
        """Learners by the place of their submission."""
        rows = self._rows("SELECT learner, place FROM handed_in WHERE place != '' ORDER BY id")
        return {row["place"]: row["learner"] for row in rows}

    def marks(self) -> dict[tuple[str, str], frozenset[int]]:
        """The fingerprints for similarity, by digest and exercise."""
        rows = self._rows("SELECT digest, exercise, marks FROM marks")
        return {(row["digest"], row["exercise"]): frozenset(json.loads(row["marks"])) for row in rows}

    def standings(self, count: str = "latest") -> list[Standing]:
        """The standings, by learner and exercise. ``count``: the "latest" or the "best" attempt; only graded ones,
        unless there are none."""
        best = one_of("count", count, ("latest", "best")) == "best"
        chosen: dict[tuple[str, str], sqlite3.Row] = {}
        newest: dict[tuple[str, str], sqlite3.Row] = {}
        numbers: dict[tuple[str, str], int] = {}
        handed_in = {
            (row["learner"], row["exercise"], row["digest"]): row
            for row in self._rows("SELECT * FROM handed_in ORDER BY id")
        }

        def latest(row: sqlite3.Row) -> tuple[int, int]:
            at = handed_in.get((row["learner"], row["exercise"], row["digest"]))
            return (0 if at is None else at["id"]), row["id"]

        last_of = self._last_exercise()
        for row in sorted(self._rows("SELECT * FROM attempts"), key=latest):
            key = (row["learner"], row["exercise"])
            if key[1] == NOTHING and last_of.get(key[0], NOTHING) != NOTHING:
                continue  # files came later
            numbers[key] = numbers.get(key, 0) + 1
            newest[key] = row
            if key not in chosen or _counts_more(row, chosen[key], best=best):
                chosen[key] = row
        by_hand, rules, people = self._by_hand(), self.rules(), self._people()
        tasks: dict[int, list[sqlite3.Row]] = {}
        for row in self._rows("SELECT * FROM tasks ORDER BY attempt, task"):
            tasks.setdefault(row["attempt"], []).append(row)
        free_days: dict[str, int] = {}  # a learner's remaining free days of lateness

        def by_deadline(key: tuple[str, str]) -> tuple[str, str]:
            known = rules.deadline(key[1], key[0])
            return ("" if known is None else known[0].isoformat()), key[1]

        found = {}
        for key in sorted(chosen, key=by_deadline):
            row, (learner, _) = chosen[key], key
            person = people.get(key, people.get((learner, ""), ("", "")))
            left = free_days.get(learner, int(rules.other(LATE_DAYS) or 0))
            submitted = handed_in.get((*key, row["digest"]), row)["submitted"]
            found[key], used = _standing(
                *(row, submitted, newest[key], tasks.get(row["id"], []), by_hand.get(key, {})),
                *(rules, numbers[key], person, left),
            )
            free_days[learner] = left - used
        return [found[key] for key in sorted(found)]

    @property
    def best(self) -> int:
        """The number of a learner's best exercises that count; 0: all."""
        return int(self.rules().other(BEST) or 0)

    def _by_hand(self) -> dict[tuple[str, str], dict[int | None, tuple[float, str]]]:
        found: dict[tuple[str, str], dict[int | None, tuple[float, str]]] = {}
        for row in self._rows("SELECT * FROM by_hand ORDER BY id"):
            given = found.setdefault((row["learner"], row["exercise"]), {})
            given.pop(row["task"], None)
            if row["points"] is not None:
                given[row["task"]] = (row["points"], row["note"])
        return found

    def rules(self) -> Rules:
        """The current rules."""
        last = {row["exercise"]: row for row in self._rows("SELECT * FROM deadlines ORDER BY id")}
        deadlines = {
            exercise: (datetime.fromisoformat(row["deadline"]), LateRule(*json.loads(row["rule"])))
            for exercise, row in last.items()
            if row["deadline"]
        }
        others = self._rows("SELECT * FROM rules ORDER BY id")
        return Rules(deadlines, {(row["kind"], row["learner"], row["exercise"]): row["value"] for row in others})


def _counts_more(row: sqlite3.Row, than: sqlite3.Row, *, best: bool) -> bool:
    """Whether an attempt replaces an earlier one."""
    if row["state"] != than["state"]:
        return bool(row["state"] == GRADED)
    return not best or row["state"] != GRADED or bool(row["points"] >= than["points"])


def _standing(
    row: sqlite3.Row,
    submitted: str,
    newest: sqlite3.Row,
    tasks: Sequence[sqlite3.Row],
    by_hand: Mapping[int | None, tuple[float, str]],
    rules: Rules,
    attempts: int,
    person: tuple[str, str],
    free_days: int,
) -> tuple[Standing, int]:
    """A standing, and the number of the learner's free late days that it uses."""

    def task_of(task: sqlite3.Row) -> TaskStanding:
        points, note = by_hand.get(task["task"], (task["points"], ""))
        return TaskStanding(task["task"], task["title"], points, task["of"], task["behaviour"], task["message"], note)

    found = tuple(map(task_of, tasks))
    raw = None if row["points"] is None else sum(task.points for task in found)
    deadline = rules.deadline(row["exercise"], row["learner"])
    is_late = deadline is not None and raw is not None and None not in by_hand
    late, kept, used = _lateness(submitted, deadline, free_days if is_late else 0)
    taken_off = 0.0 if raw is None else round(raw * (1 - kept), 2)
    points = None if raw is None else raw - taken_off
    flags = tuple(json.loads(row["flags"]))
    if newest["id"] != row["id"] and newest["state"] == NOT_GRADED:
        flags += (f"a later one was not graded: {newest['problem']}",)
    if not late and BY_THE_PLATFORM in flags:
        late = f"late ({BY_THE_PLATFORM}, not by how much)"
    note = ""
    if None in by_hand:  # for the whole exercise: as given, without deductions
        (points, note), taken_off = by_hand[None], 0.0
    weight = rules.other(WEIGHT, exercise=row["exercise"])
    standing = Standing(
        **{name: row[name] for name in _AS_THEY_ARE},
        points=points,
        tasks=found,
        flags=flags,
        not_enforced=tuple(json.loads(row["not_enforced"])),
        attempt=row["id"],
        attempts=attempts,
        submitted=submitted,
        taken_off=taken_off,
        late=late,
        note=note,
        id=person[0],
        email=person[1],
        weight=float(weight) if weight else None,
    )
    return standing, used


def _lateness(submitted: str, deadline: tuple[datetime, LateRule] | None, free_days: int) -> tuple[str, float, int]:
    """ "2.0 days late", the remaining fraction of the points, and the number of free days used of those left."""
    if deadline is None or not submitted:
        return "", 1.0, 0
    late = datetime.fromisoformat(submitted) - deadline[0]
    if late <= timedelta(0):
        return "", 1.0, 0
    hours = late / timedelta(hours=1)
    minutes = math.ceil(late / timedelta(minutes=1))
    said = f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours" if hours >= 1 else f"{minutes} minutes"
    used = min(free_days, math.ceil(late / timedelta(days=1))) if deadline[1].percent else 0
    free = f", of which {used} free day{'s' * (used != 1)}" if used else ""
    return f"{'1 minute' if minutes == 1 else said} late{free}", deadline[1].kept(late - timedelta(days=used)), used


def _listed(record: Mapping[str, Any], key: str) -> str:
    return json.dumps(record.get(key, []), ensure_ascii=False)


def _storable(value: Any) -> Any:
    """The record with valid UTF-8 text, which SQLite requires: lone surrogates become question marks."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {key: _storable(each) for key, each in value.items()}
    return [_storable(each) for each in value] if isinstance(value, list) else value


def _this_grader() -> str:
    return f"{platform.node()} {os.getpid()}"
