"""All programs with a mistake in a kernel of the library, by the mode that the kernel is of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from ep_lib import Fabric
from wrong_variants import direct_variants as direct
from wrong_variants import hierarchical_variants as hierarchical
from wrong_variants import low_latency_variants as low_latency
from wrong_variants import pcie_variants as pcie
from wrong_variants.all_in_one import KINDS, Mistake, use_variant


class Wrong(NamedTuple):
    """``use``: makes the library's kernel the one with the mistake, which a report calls by one of ``kinds``."""

    name: str
    main: Callable[..., Any]
    ranks: int
    fabric: Fabric | str | None
    args: tuple[Any, ...]
    kinds: frozenset[str] = KINDS
    use: Callable[[pytest.MonkeyPatch], None] = lambda _: None


def _launch(module: Any, mistake: Mistake) -> tuple[int, Fabric | str | None, tuple[Any, ...]]:
    """On how many ranks, on which fabric, and with which arguments a mistake shows."""
    if module is direct:
        return 3, None, (mistake.kernel,)
    if module is low_latency:
        return 3, None, (*((3, 1) if mistake.kernel == "dispatch" else (1, 3)), mistake.alone)
    if module is pcie:
        return 3, mistake.fabric, (mistake.tokens,)
    return 4, Fabric(mistake.fabric, ranks_per_node=2), (mistake.tokens,)


OF_MODES = {
    module.__name__.rpartition(".")[2].removesuffix("_variants"): [
        Wrong(each.name, module.main, *_launch(module, each), each.kinds, partial(use_variant, module, number))
        for number, each in enumerate(module.VARIANTS)
    ]
    for module in (direct, low_latency, pcie, hierarchical)
}
