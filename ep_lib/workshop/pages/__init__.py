"""Pages for instructors and learners: the Jinja2 templates beside this file, without scripts.

Every value is escaped and free of control characters, since much of it comes from submissions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ep_lib.workshop.grader.grading import printable

_MOST_NAMED = 6  # exercises of a line


def number(value: float | None) -> str:
    """Points as people write them: 7, 7.5; "" for none."""
    return "" if value is None else f"{round(value, 2):g}"


def counted(count: int, noun: str) -> str:
    """ "1 exercise", "2 exercises"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def shortened(names: Sequence[str]) -> str:
    """The first of many names, and the number of others."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


def render(template: str, **values: Any) -> str:
    """A template of this folder with its values. Raises jinja2.TemplateError for one that is wrong."""
    return _ENVIRONMENT.get_template(template).render(values)


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value))


def _with_code(text: str) -> Markup:
    """Text with what stands between backticks as code."""
    return Markup(re.sub(r"`(.*?)`", r"<code>\1</code>", str(Markup.escape(printable(text)))))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"number": number, "counted": counted, "shortened": shortened, "with_code": _with_code}
