"""ONNX's own cases of contractions, pooling, recurrence, attention, transforms and optimisers."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright.lower.host_only
import tilewright.lower.optimizer  # noqa: F401
import unit.lower.against_reference  # noqa: F401
from tilewright.lower.context import Unlowerable
from unit.lower.harness import Case, check_case, node_cases

_TRAINING = "ai.onnx.preview.training"
_OPERATORS = (
    "MatMul Gemm Einsum MatMulInteger QLinearMatMul Conv ConvInteger QLinearConv ConvTranspose "
    "DeformConv CausalConvWithState MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool "
    "LSTM GRU RNN Attention LinearAttention DFT STFT Det"
).split()
_PRINTED = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": "expectation written with four digits",
}
_OLD_FORMS = {  # the axis is an attribute; graph.normalize makes it an input
    f"test_dft{kind}_opset19": "not in the newest form"
    for kind in ("", "_axis", "_inverse", "_rfft", "_irfft")
}


@pytest.mark.parametrize("case", node_cases(*_OPERATORS, skip=_PRINTED | _OLD_FORMS))
def test_case(case: Case) -> None:
    check_case(case)


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
