"""The faces of DeepEP and NIXL EP have their parameters, in their order and with their defaults: of each class at the
commit that it names."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import inspect
import tomllib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import TESTS, deep_ep_cases

import ep_lib
from ep_lib.compat import deep_ep, nixl_ep
from ep_lib.errors import NotSupportedError

SUPPORT = TESTS / "support"
FACTS = tomllib.loads((SUPPORT / "deep_ep_facts.toml").read_text())
NIXL_FACTS = tomllib.loads((SUPPORT / "nixl_ep_facts.toml").read_text())
FACES = {
    deep_ep.Buffer: FACTS["Buffer"],
    deep_ep.ElasticBuffer: FACTS["ElasticBuffer"],
    deep_ep.EventOverlap: FACTS["EventOverlap"],
    nixl_ep.Buffer: NIXL_FACTS["Buffer"],
}


def parameters(function: Any) -> list[str]:
    """Of a function: ``name``, or ``name=default``."""
    return [
        p.name if p.default is p.empty else f"{p.name}={p.default}"
        for p in inspect.signature(function).parameters.values()
        if p.name != "self"
    ]


each_face = pytest.mark.parametrize(("face", "facts"), FACES.items())


@each_face
def test_parameters_are_theirs(face: type, facts: dict[str, Any]) -> None:
    theirs = {method: words.split() for method, words in facts["methods"].items()}
    assert {method: parameters(getattr(face, method)) for method in theirs} == theirs


@each_face
def test_nothing_else_is_public(face: type, facts: dict[str, Any]) -> None:
    public = {name for name in dir(face) if callable(getattr(face, name)) and not name.startswith("_")}
    known = {*facts["methods"], *facts.get("absent", ()), *facts.get("added", ())}
    assert public == {name for name in known if not name.startswith("_")}
    for name in facts.get("absent", ()):
        with pytest.raises(NotSupportedError, match=r"torch\.|own_kernel|normal mode"):
            getattr(face, name)()


@pytest.mark.parametrize("expand", [False, True])
def test_a_handle_has_deep_eps_attributes(expand: bool) -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=4, hidden=deep_ep_cases.HIDDEN)
        x, idx, _ = deep_ep_cases.choices(rank, 4)
        *_, handle, _ = buffer.dispatch(x, idx, num_experts=8, do_expand=expand)
        assert isinstance(handle, deep_ep.EPHandle) and handle.num_experts == 8 and handle.do_expand is expand
        for name in FACTS["EPHandle"]["attributes"].split():
            getattr(handle, name)
        assert handle.num_sms == buffer.get_theoretical_num_sms(8, 3) and handle.num_max_tokens_per_rank == 4
        assert (handle.num_unaligned_recv_tokens_per_expert is not None) == expand
        assert handle.num_expanded_tokens == sum(handle.num_recv_tokens_per_expert_list) == int((idx >= 0).sum())
        went = (idx >= 0).any(1)  # to the only rank: each token that has an expert is a row there
        place = torch.where(idx < 0, -1, (went.cumsum(0) - 1).unsqueeze(1))
        assert torch.equal(handle.dst_buffer_slot_idx, place.int())

    ep_lib.spawn(main, ranks=1, backend="emulator")
