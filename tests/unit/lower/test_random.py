"""What draws random numbers is refused; Dropout that drops nothing is the identity."""

from typing import Any

import numpy as np
import pytest

from tilewright.lower.context import Unlowerable, View
from unit.lower.harness import Array, Case, check_case, lower_operator, node_cases, run_operator

TRAINING = [case.id for case in node_cases("Dropout") if "training" in str(case.id)]
TRUE, RATIO = np.array(True), np.float32(0.5)


@pytest.mark.parametrize("case", node_cases("Dropout", without=TRAINING))
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


@pytest.mark.parametrize("case", node_cases("Dropout"))
def test_case_that_is_known_not_to_drop(case: Case) -> None:
    ratio = float(case.feeds["r"]) if "r" in case.feeds else 0.5
    if "training" in case.name and ratio:
        with pytest.raises(Unlowerable, match="random"):
            check_case(case, constant=[1, 2])
    else:
        check_case(case, constant=[1, 2])


def test_dropout_is_a_view() -> None:
    lowering = lower_operator("Dropout", {"x": np.ones(3, np.float32)})
    assert [type(item) for item in lowering.items] == [View]


def test_training_known_only_at_run_time_is_refused() -> None:
    feeds = {"x": np.ones(3, np.float32), "r": RATIO, "t": TRUE}
    with pytest.raises(Unlowerable, match="run time"):
        run_operator("Dropout", feeds)


@pytest.mark.parametrize("case", node_cases("Bernoulli"))
def test_random_operators_are_refused(case: Case) -> None:
    with pytest.raises(Unlowerable, match="random"):
        check_case(case)


@pytest.mark.parametrize(
    ("op_type", "feeds", "attributes"),
    [
        ("RandomNormal", {}, {"shape": [2]}),
        ("RandomUniform", {}, {"shape": [2]}),
        ("RandomNormalLike", {"x": np.ones(2, np.float32)}, {}),
        ("RandomUniformLike", {"x": np.ones(2, np.float32)}, {}),
        ("Multinomial", {"x": np.ones((1, 2), np.float32)}, {}),
    ],
)
def test_generators_are_refused(
    op_type: str, feeds: dict[str, Array], attributes: dict[str, Any]
) -> None:
    with pytest.raises(Unlowerable, match=f"{op_type} draws random numbers"):
        run_operator(op_type, feeds, **attributes)
