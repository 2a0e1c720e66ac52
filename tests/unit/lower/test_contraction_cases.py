"""ONNX's own cases of contractions, pooling, recurrence, attention, transforms and optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.lower.host_only
import tilewright.lower.optimizer  # noqa: F401
import unit.lower.against_reference  # noqa: F401
from tilewright.graph.build_view import view
from tilewright.graph.load import load_model
from tilewright.graph.normalize import normalize
from tilewright.lower.context import Unlowerable
from unit.lower.harness import (
    Case,
    case_named,
    check_case,
    compare,
    node_cases,
    run_graph,
    run_model,
)

_TRAINING = "ai.onnx.preview.training"
_OPERATORS = (
    "MatMul Gemm Einsum MatMulInteger QLinearMatMul Conv ConvInteger QLinearConv ConvTranspose "
    "DeformConv CausalConvWithState MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool "
    "LSTM GRU RNN Attention LinearAttention STFT Det"
).split()
_PRINTED = "test_averagepool_2d_ceil_last_window_starts_on_pad"  # expectation with four digits


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", node_cases(*_OPERATORS, without=(_PRINTED,)))
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


def test_printed_case() -> None:
    case = case_named(_PRINTED)
    results = run_model(case.model, case.feeds)
    for name, expected in case.expected.items():
        np.testing.assert_allclose(results[name], expected, atol=1e-4)


@pytest.mark.parametrize("case", node_cases("DFT"))
def test_dft_case_in_newest_form(case: Case) -> None:
    model = load_model(case.model)
    normalize(model)
    results = run_graph(view(model), case.feeds)
    for name, expected in case.expected.items():
        compare(results[name], expected, name)


@pytest.mark.parametrize("case", node_cases("Adagrad", "Adam", "Momentum", domain=_TRAINING))
def test_optimizer_case(case: Case) -> None:
    check_case(case)


def _flex_cases(*, modified: bool) -> list[Any]:
    return [
        case
        for case in node_cases("FlexAttention", domain="ai.onnx.preview")
        if any(part.name.endswith("_mod") for part in case.values[0].model.graph.node[0].attribute)
        == modified
    ]


@pytest.mark.parametrize("case", _flex_cases(modified=False))
def test_flex_attention_case(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", _flex_cases(modified=True))
def test_flex_attention_with_sub_graphs_is_refused(case: Case) -> None:
    with pytest.raises(Unlowerable, match="is a sub-graph"):
        check_case(case)


@pytest.mark.parametrize("case", node_cases("ImageDecoder"))
def test_image_decoder_is_refused(case: Case) -> None:
    with pytest.raises(Unlowerable, match="parses a compressed file"):
        check_case(case)
