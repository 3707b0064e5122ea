"""Numbers for objects, since the operators of a compiled torch graph take only numbers."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from ep_lib.errors import BufferClosedError

_numbers = itertools.count(1)
_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def add(thing: Any) -> int:
    """A number of this process for ``thing``, valid as long as another reference to it exists."""
    number = next(_numbers)
    _objects[number] = thing
    return number


def find(number: int) -> Any:
    """The object with this number. Raises BufferClosedError if it is gone."""
    thing = _objects.get(int(number))
    if thing is None:
        raise BufferClosedError(
            f"the Buffer or handle with number {int(number)} does not exist any more; make a new one"
        )
    return thing
