"""Every ONNX node case: inferred types, shapes and contents against the arrays of a real run."""

from __future__ import annotations

from collections import Counter

import pytest

from tilewright.graph.shapes.families import RULES
from unit.graph.shapes.conformance import MODES, check_case, load_case, node_cases

# The function body of AffineGrid chooses a rank by a run-time condition.
_RANK_BY_CONDITION = "test_affine_grid_"
_GROUPS = 8


@pytest.mark.slow
@pytest.mark.parametrize("group", range(_GROUPS))
def test_inference_agrees_with_every_case(group: int) -> None:
    totals: Counter[str] = Counter()
    problems: list[str] = []
    for name in sorted(node_cases())[group::_GROUPS]:
        case = load_case(name)
        for mode in MODES:
            outcome = check_case(case, mode)
            problems += [f"{name} ({mode}): {text}" for text in outcome.problems]
            totals["checked"] += outcome.num_checked
            totals["symbolic"] += outcome.num_symbolic
            if outcome.unknown_rank and not name.startswith(_RANK_BY_CONDITION):
                problems.append(f"{name} ({mode}): unknown rank of {outcome.unknown_rank}")
    assert not problems, "\n".join(problems[:20])
    assert totals["checked"] > 4000
    assert totals["symbolic"] > 500


def test_every_operator_of_the_cases_has_a_rule() -> None:
    used = {
        (node.domain, node.op_type)
        for case in node_cases().values()
        for node in case.model.graph.node
    }
    known = {op_type for domain, op_type in RULES if domain == ""}
    missing = {
        (domain, op_type)
        for domain, op_type in used
        if (domain, op_type) not in RULES and not (domain == "ai.onnx" and op_type in known)
    }
    assert not missing
