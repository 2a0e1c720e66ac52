"""Choices next to one: which there are, and where going from one to the next ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.compress.clock import Left
from tilewright.compress.moves import Descent, after, descend, neighbours
from tilewright.core.errors import BadOption
from tilewright.report.quantization import Front, Move, quantization_lines
from tilewright.report.quantization_page import quantization_page
from unit.compress.test_quantize import batches, block

NODES = ("a", "b", "c", "d", "e")


@dataclass
class _Clock:
    """Times that a table says; ``noise`` makes the first comparisons flatter some choices."""

    saved: dict[str, float]
    together: dict[frozenset[str], float] = field(default_factory=dict)
    noise: dict[Left, float] = field(default_factory=dict)
    built: list[Left] = field(default_factory=list)

    def engine(self, left: Left = frozenset()) -> Any:
        self.built.append(left)
        return left

    def times(self, engines: dict[str, Any]) -> dict[str, float]:
        return {name: self._time(left) for name, left in engines.items()}

    def _time(self, left: Left) -> float:
        time = 100.0 - sum(self.saved.get(node, -5.0) for node in left)
        time -= sum(more for nodes, more in self.together.items() if nodes <= left)
        return time - self.noise.pop(left, 0.0)


def _descended(clock: _Clock, allowed: Any = lambda _: True, start: Left = frozenset()) -> Descent:
    return descend(clock, start, NODES, allowed)  # type: ignore[arg-type]


def test_neighbours_are_single_nodes_and_runs() -> None:
    found = list(neighbours(frozenset("b"), NODES))
    assert found == [("a",), ("b",), ("c",), ("d",), ("e",), ("c", "d"), ("a", "c", "d")]
    assert after(frozenset("b"), ("b",)) == frozenset()
    assert after(frozenset("b"), ("c", "d")) == frozenset("bcd")


def test_uniform_integers_are_kept_where_every_move_is_slower() -> None:
    found = _descended(_Clock({}))
    assert (found.left, found.steps) == (frozenset(), 0)
    assert len(found.moves) == 5 + 2 + 1
    assert found.moves[0].ratio == pytest.approx(1.05)


def test_all_that_is_faster_alone_goes_at_once() -> None:
    found = _descended(_Clock({"a": 3.0, "d": 2.0}))
    assert (found.left, found.steps) == (frozenset("ad"), 1)


def test_a_run_that_is_only_faster_together_is_found() -> None:
    found = _descended(_Clock({}, together={frozenset("cd"): 20.0}))
    assert found.left == frozenset("cd")


def test_a_node_goes_back_to_integers() -> None:
    found = _descended(_Clock({}), start=frozenset("b"))
    assert found.left == frozenset()


def test_what_only_seemed_faster_is_timed_again_before_it_is_scored() -> None:
    scored: list[Left] = []
    clock = _Clock({}, noise={frozenset("a"): 20.0, frozenset("d"): 9.0})
    found = _descended(clock, allowed=scored.append)
    assert (found.left, scored) == (frozenset(), [])
    assert all(move.ratio > 1 for move in found.moves)


def test_the_budget_holds() -> None:
    found = _descended(_Clock({"a": 3.0, "d": 2.0}), allowed=lambda left: "a" not in left)
    assert found.left == frozenset("d")
    first = found.moves[0]
    assert (first.nodes, first.within) == (("a",), False)
    assert first.ratio < 1


def _front(*moves: Move) -> Front:
    return Front(
        budget="b", points=(), chosen=0, optimal=(), measured_us={}, samples=1, moves=moves
    )


def test_the_verdict_says_what_was_found() -> None:
    slower = Move(nodes=("a", "b"), to="float", ratio=1.02)
    outside = Move(nodes=("c",), to="float", ratio=0.9, within=False)
    faster = Move(nodes=("d",), to="int8", ratio=0.95, within=True)
    assert _front().verdict is None
    verdict = _front(slower).verdict or ""
    assert "the fastest takes 1.020 times as long (a and 1 more to float)" in verdict
    verdict = _front(outside, slower).verdict or ""
    assert "1 of them faster and outside of the budget; the fastest takes 1.020" in verdict
    assert (_front(faster, slower).verdict or "").endswith("no optimum yet")
    assert (_front(outside).verdict or "").endswith("outside of the budget")


@pytest.mark.parametrize(("us", "slower"), [(2.0, False), (4.0, True)])
def test_a_choice_slower_than_float_is_told(us: float, slower: bool) -> None:
    found = tw.quantize(block(), batches(), min_sqnr=10)
    front = found.front
    assert front is not None
    front = replace(front, measured_us={"float": 3.0, "int8": 2.5, "chosen": us})
    lines = quantization_lines("m", found.summary, found.decisions, found.sensitivity, front)
    assert any("than the float model here" in line for line in lines) is slower


def test_a_choice_is_proven_and_told() -> None:
    found = tw.quantize(block(), batches(), min_sqnr=10, prove=True)
    front = found.front
    assert front is not None
    assert front.verdict is not None
    assert "7 nodes moved alone" in front.verdict
    assert all(move.ratio > 0 for move in front.moves)
    page = quantization_page("m", found.summary, found.decisions, found.sensitivity, front)
    assert "Next to the chosen one" in page
    assert "each built and timed" in page


def test_a_proof_needs_a_budget() -> None:
    with pytest.raises(BadOption, match="prove is given, but nothing is chosen"):
        tw.quantize(block(), batches(), prove=True)
