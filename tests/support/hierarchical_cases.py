"""What the tests of hierarchical mode run, and its oracle."""

from __future__ import annotations

from typing import Any

from ep_lib import Rank, reference
from support import buffer_cases, pcie_cases
from support.dispatch_combine_cases import Case


class NodesCase(Case):
    """A Case for nodes, whose sums are rounded between them."""

    ranks_per_node: int

    def expected_combine(self, ys: list[Any], *, weighted: bool) -> list[Any]:
        weights = self.topk_weights if weighted else None
        return reference.combine(
            ys, self.topk_idx, weights, num_experts=self.num_experts, ranks_per_node=self.ranks_per_node
        )


def in_nodes(case: Case, ranks_per_node: int) -> NodesCase:
    """The same case, for nodes of so many ranks."""
    result = NodesCase(**vars(case))
    object.__setattr__(result, "ranks_per_node", ranks_per_node)
    return result


def arguments(case: Case, num_sms: int = 3, ranks_per_node: int | None = None) -> dict[str, Any]:
    """Of a Buffer in hierarchical mode."""
    return {**case.buffer_arguments(), "num_sms": num_sms, "hierarchical": True, "ranks_per_node": ranks_per_node}


def run_case(
    rank: Rank, case: Case, num_sms: int = 3, kind: str = "native", ranks_per_node: int | None = None
) -> dict[str, Any]:
    """Everything a Buffer does, once, in hierarchical mode."""
    return buffer_cases.run_case(rank, case, kind, arguments(case, num_sms, ranks_per_node))


def run_fp8(rank: Rank, case: Case, kind: str = "native") -> dict[str, Any]:
    """FP8 rows there, BF16 rows back."""
    return pcie_cases.run_fp8(rank, case, None, kind, arguments(case))
