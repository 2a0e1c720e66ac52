"""Whole quantisations of small models: what ONNX Runtime and our engine make of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.compress.data import BadData
from tilewright.compress.quantized import Quantized
from tilewright.core.errors import BadOption, ContractBreach
from unit.compiler.models import compiled, network, normal
from unit.graph.models import model_of, node, tensor_info


def batches(count: int = 4, size: int = 3) -> list[dict[str, Any]]:
    return [{"x": normal(size, 3, 8, 8, seed=seed)} for seed in range(count)]


def block(**changes: Any) -> onnx.ModelProto:
    """A residual block between convolutions, then a classifier."""
    weights = {
        "w1": normal(8, 3, 3, 3, seed=1) / 3,
        "b1": normal(8, seed=2),
        "w2": normal(8, 1, 3, 3, seed=3) / 3,
        "w3": normal(8, 8, 1, 1, seed=4) / 3,
        "b3": normal(8, seed=5),
        "w4": normal(8, 5, seed=6) / 3,
        "b4": normal(5, seed=7),
        **changes,
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="stem", pads=[1, 1, 1, 1]),
        node("Clip", ["a", "zero", "six"], ["r"], name="relu6"),
        node("Conv", ["r", "w2"], ["d"], name="depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Relu", ["d"], ["e"], name="relu"),
        node("Conv", ["e", "w3", "b3"], ["p"], name="project"),
        node("Add", ["p", "r"], ["s"], name="residual"),
        node("GlobalAveragePool", ["s"], ["g"], name="pool"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("Gemm", ["f", "w4", "b4"], ["y"], name="classifier"),
    ]
    weights |= {"zero": np.float32(0), "six": np.float32(6)}
    return model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 3, 8, 8))],
        output_shape=("n", 5),
        weights=weights,
        opset=17,
    )


def ops(found: Quantized) -> list[str]:
    return [one.op_type for one in onnx.load_from_string(found.model).graph.node]


def error_of(found: Quantized, model: onnx.ModelProto) -> float:
    """Of our engine of the quantised model, relative to the float one, inside of its range."""
    x = normal(4, 3, 8, 8, seed=77).clip(-3, 3)
    exact = compiled(model)(x=x)["y"]
    given = compiled(found.model)(x=x)["y"]  # type: ignore[arg-type]
    return float(np.abs(given - exact).max() / np.abs(exact).max())


def test_a_block_becomes_integers_between_the_first_and_the_last_layer() -> None:
    found = tw.quantize(block(), batches())
    assert found.summary["layers"] == 4
    assert found.summary["carriers"] == 3
    names = ops(found)
    assert "Clip" not in names
    assert "Relu" not in names  # the quantisers behind them saturate there
    assert names[-1] == "Gemm"  # the result stays in float
    model = onnx.load_from_string(found.model)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 21
    assert error_of(found, block()) < 0.03


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_channel": False},
        {"activations": "int8"},
        {"calibration": "percentile", "percentile": 99.9},
        {"calibration": "entropy"},
        {"calibration": "mse", "remedies": "none"},
        {"calibration": "moving-average", "remedies": ["bias-correction"]},
        {"remedies": ["adaround", "bias-correction"]},
        {"exclude": ["depthwise"]},
        {"format": "float8"},
        {"format": "float8", "per_channel": False, "remedies": "none"},
    ],
)
def test_onnx_runtime_gives_the_same_values(options: dict[str, Any]) -> None:
    """Up to one step of a value that lies on the border of two; those of float8 are greater."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    found = tw.quantize(block(), batches(), **options)
    x = normal(4, 3, 8, 8, seed=77)
    how = ort.SessionOptions()
    if options.get("format") == "float8":  # which the rewrites of version 1.32 take for integers
        how.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(found.model, how, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": x})
    ours = compiled(found.model)(x=x)["y"]  # type: ignore[arg-type]
    tolerance = 0.06 if options.get("format") == "float8" else 0.01
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


def test_float8_has_the_places_of_integers_and_biases_in_float() -> None:
    found = tw.quantize(block(), batches(), format="float8", remedies="none")
    assert (found.summary["layers"], found.summary["carriers"]) == (4, 3)
    assert found.summary["activations"] == "float8"
    assert found.summary["weights"] == "float8 per channel"
    model = onnx.load_from_string(found.model)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version >= 19
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    np.testing.assert_array_equal(arrays["b1"], normal(8, seed=2))
    largest = np.abs(normal(8, 3, 3, 3, seed=1) / 3).max((1, 2, 3))
    np.testing.assert_allclose(arrays["w1_scale"], largest / 448, rtol=1e-6)
    assert np.abs(arrays["w1_quantized"].astype(np.float32)).max((1, 2, 3)).tolist() == [448] * 8
    seen = max(np.abs(batch["x"]).max() for batch in batches())
    assert arrays["x_scale"] == np.float32(seen / 448)
    kinds = {one.data_type for one in model.graph.initializer if one.name.endswith("_zero_point")}
    assert kinds == {onnx.TensorProto.FLOAT8E4M3FN}
    assert "Clip" in ops(found)  # numbers of float8 go below 0: nothing saturates there
    assert error_of(found, block()) < 0.06


def test_float8_takes_mean_errors_out_of_biases_that_stay_in_float() -> None:
    found = tw.quantize(block(), batches(), format="float8")
    model = onnx.load_from_string(found.model)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    (bias,) = (arrays[one.input[2]] for one in model.graph.node if one.name == "stem")
    assert bias.dtype == np.float32
    assert 0 < np.abs(bias - normal(8, seed=2)).max() < 0.05
    skipped = {one.subject for one in found.decisions if one.chosen == "not applied"}
    assert {"gptq", "adaround", "smooth", "equalize"} <= skipped


def test_the_same_data_give_the_same_bytes() -> None:
    assert tw.quantize(block(), batches()).model == tw.quantize(block(), batches()).model


def test_a_bias_has_the_scale_of_its_sums() -> None:
    found = onnx.load_from_string(tw.quantize(block(), batches(), remedies="none").model)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in found.graph.initializer}
    scale = arrays["x_scale"] * arrays["w1_scale"]
    np.testing.assert_array_equal(arrays["b1_scale"], scale.astype(np.float32))
    np.testing.assert_array_equal(arrays["b1_quantized"], np.rint(normal(8, seed=2) / scale))


def test_a_bias_beyond_int32_raises_the_scale_of_its_weights() -> None:
    weights = normal(8, 3, 3, 3, seed=1) / 3
    weights[2] *= 1e-12
    found = tw.quantize(block(w1=weights), batches(), remedies="none")
    raised = [one for one in found.decisions if "raised" in one.chosen]
    assert [one.subject for one in raised] == ["stem"]
    assert error_of(found, block(w1=weights)) < 0.03


def test_channels_of_a_transposed_convolution_have_axis_1() -> None:
    model = model_of(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], name="up", strides=[2, 2], group=1)],
        inputs=[tensor_info("x", ("n", 3, 8, 8))],
        output_shape=("n", 4, 16, 16),
        weights={"w": normal(3, 4, 2, 2), "b": normal(4)},
        opset=17,
    )
    found = tw.quantize(model, batches())
    (axis,) = {
        attribute.i
        for one in onnx.load_from_string(found.model).graph.node
        for attribute in one.attribute
        if one.op_type == "DequantizeLinear" and one.input[0].startswith("w")
    }
    assert axis == 1
    assert error_of(found, model) < 0.03


def test_dynamic_activations_need_no_data() -> None:
    model = model_of(
        [
            node("MatMul", ["x", "w"], ["a"], name="first"),
            node("Gemm", ["a", "v", "b"], ["y"], name="second", transB=1),
        ],
        inputs=[tensor_info("x", ("n", 8))],
        output_shape=("n", 6),
        weights={"w": normal(8, 5), "v": normal(6, 5), "b": normal(6)},
        opset=17,
    )
    found = tw.quantize(model, activations="dynamic")
    assert ops(found).count("DynamicQuantizeLinear") == 2
    assert ops(found).count("MatMulInteger") == 2
    x = normal(7, 8, seed=9)
    exact, given = compiled(model)(x=x)["y"], compiled(found.model)(x=x)["y"]  # type: ignore[arg-type]
    assert np.abs(given - exact).max() < 0.03 * np.abs(exact).max()


def test_a_value_that_is_read_in_float_too_stays_exact_there() -> None:
    model = model_of(
        [
            node("Softmax", ["x"], ["s"], name="softmax"),
            node("MatMul", ["s", "w"], ["m"], name="product"),
            node("Add", ["s", "m"], ["y"], name="sum"),
        ],
        inputs=[tensor_info("x", ("n", 8))],
        output_shape=("n", 8),
        weights={"w": np.zeros((8, 8), np.float32) + 1e-6},
        opset=17,
    )
    data = [{"x": normal(4, 8, seed=seed)} for seed in range(4)]
    x = normal(5, 8, seed=9)
    exact = compiled(model)(x=x)["y"]
    given = compiled(tw.quantize(model, data).model)(x=x)["y"]  # type: ignore[arg-type]
    np.testing.assert_allclose(given, exact, atol=1e-6)


def test_outliers_of_some_channels_move_into_the_weights() -> None:
    weights = normal(16, 8, seed=1)
    model = model_of(
        [
            node("Tanh", ["x"], ["t"], name="tanh"),
            node("Mul", ["t", "big"], ["b"], name="outliers"),
            node("MatMul", ["b", "w"], ["y"], name="product"),
        ],
        inputs=[tensor_info("x", ("n", 16))],
        output_shape=("n", 8),
        weights={"w": weights, "big": np.where(np.arange(16) == 3, 100, 1).astype(np.float32)},
        opset=17,
    )
    data = [{"x": normal(16, 16, seed=seed)} for seed in range(4)]
    x = normal(64, 16, seed=9)
    exact = compiled(model)(x=x)["y"]
    errors = {}
    for remedies in ("none", "smooth"):
        found = tw.quantize(model, data, remedies=remedies)
        given = compiled(found.model)(x=x)["y"]  # type: ignore[arg-type]
        errors[remedies] = np.square(given - exact).mean()
    assert errors["smooth"] < errors["none"] / 4


@pytest.mark.parametrize(
    ("data", "reason"),
    [(batches(), "most layers are convolutions"), (iter(batches()), "the data end after one walk")],
)
def test_smoothing_says_why_it_does_not_walk_over_the_data(data: Any, reason: str) -> None:
    found = tw.quantize(block(), data)
    (told,) = [one for one in found.decisions if one.subject == "smooth"]
    assert reason in told.rejected[0][1]


def test_a_batch_is_dropped_before_the_next_but_one() -> None:
    given: list[weakref.ref[Any]] = []

    def data() -> Iterator[dict[str, Any]]:
        for seed in range(10):
            assert sum(one() is not None for one in given) <= 2
            x = normal(2, 3, 8, 8, seed=seed)
            given.append(weakref.ref(x))
            yield {"x": x}

    tw.quantize(block(), data)
    assert len(given) == 10


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "0 samples, at least 8"),
        ([{"x": normal(7, 3, 8, 8)}], "7 samples, at least 8"),
        ([{"x": np.full((9, 3, 8, 8), 0.5, np.float32)}], "x is 0.5 everywhere"),
        ([{"x": normal(1, 3, 8, 8).repeat(9, 0)}], "all 9 samples are the same"),
        ([{"x": np.full((9, 3, 8, 8), np.nan, np.float32)}], "x holds NaN"),
    ],
)
def test_data_that_tell_nothing_are_refused(data: Any, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        tw.quantize(block(), data)
    assert caught.value.remedy


def test_a_model_that_overflows_on_the_data_is_named() -> None:
    model = model_of(
        [node("Exp", ["x"], ["e"], name="exp"), node("MatMul", ["e", "w"], ["y"], name="product")],
        inputs=[tensor_info("x", ("n", 4))],
        weights={"w": normal(4, 4)},
        opset=17,
    )
    with pytest.raises(BadData, match="e of the model is NaN or infinite"):
        tw.quantize(model, [{"x": 100 * normal(9, 4)}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibration": "kl"}, "unknown calibration 'kl'"),
        ({"percentile": 99.9}, "percentile is given, but calibration is minmax"),
        ({"calibration": "percentile", "percentile": 5}, "percentile is 5"),
        ({"activations": "int4"}, "unknown activations 'int4'"),
        ({"remedies": ["magic"]}, "unknown remedies \\['magic'\\]"),
        ({"remedies": "gptq,adaround"}, "both choose roundings"),
        ({"exclude": ["nowhere"]}, "the model has no node nowhere"),
        ({"activations": "dynamic", "calibration": "mse"}, "calibration mse with dynamic"),
        ({"format": "fp8"}, "unknown format 'fp8'"),
        ({"format": "float8", "activations": "uint8"}, "activations 'uint8' with format float8"),
        ({"format": "float8", "activations": "dynamic"}, "activations 'dynamic' with format"),
        ({"format": "float8", "calibration": "entropy"}, "entropy counts the equal steps"),
        ({"format": "float8", "remedies": ["gptq", "smooth"]}, "remedies gptq, smooth with format"),
        ({"format": "float8", "sensitivity": True}, "an evaluation with format float8"),
        ({"format": "float8", "min_sqnr": 20.0}, "an evaluation with format float8"),
        ({"format": "float8", "weights": "int8"}, "format would have no effect"),
        ({"labels": [1]}, "labels is given, but nothing is evaluated"),
        ({"sensitivity": True, "labels": [1]}, "labels without eval_data"),
        ({"limit": 0}, "limit is 0"),
        ({"eval_limit": 0}, "eval_limit is 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        tw.quantize(block(), batches(), **options)
    assert caught.value.remedy


def test_data_are_needed_for_static_ranges() -> None:
    with pytest.raises(BadOption, match="data is missing"):
        tw.quantize(block())


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(BadOption, match="nothing can be quantised"):
        tw.quantize(model_of([node("Neg", ["x"], ["y"])]), [{"x": normal(2)}])


def test_the_file_is_what_was_made(tmp_path: Path) -> None:
    found = tw.quantize(network(), [{"x": normal(2, 3, 6, 8, seed=s)} for s in range(5)])
    found.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == found.model


# --- the contract ---------------------------------------------------------------------------------


def _with_softmax() -> onnx.ModelProto:
    """A block whose classifier goes on in float."""
    model = block()
    model.graph.node[-1].output[0] = "logits"
    model.graph.node.append(node("Softmax", ["logits"], ["y"], name="softmax"))
    return model


def test_what_computes_in_float_is_recorded_and_the_contract_refuses_it() -> None:
    found = tw.quantize(_with_softmax(), batches())
    assert found.summary["kept_in_float"] == ["softmax"]
    (told,) = [one for one in found.decisions if one.subject == "softmax"]
    assert told.chosen == "Softmax kept in float"
    assert told.rejected == (("int8", "Softmax has no kernel on integers"),)
    with pytest.raises(ContractBreach, match="1 node would stay in float") as caught:
        tw.quantize(_with_softmax(), batches(), require=["quantized"])
    assert "softmax (Softmax): Softmax has no kernel on integers" in str(caught.value)
    assert "exclude these nodes by name" in str(caught.value)


def test_the_contract_lets_pass_what_is_on_integers_or_excluded() -> None:
    assert tw.quantize(block(), batches(), require="quantized").summary["kept_in_float"] == []
    found = tw.quantize(_with_softmax(), batches(), require=["quantized"], exclude=["softmax"])
    assert found.summary["kept_in_float"] == ["softmax"]


def test_the_contract_holds_beside_a_budget() -> None:
    whole = tw.quantize(block(), batches(), sensitivity=True)
    assert whole.sensitivity is not None
    wanted = whole.sensitivity.sqnr_db + 1
    with pytest.raises(ContractBreach, match="by the budget"):
        tw.quantize(block(), batches(), min_sqnr=wanted, require=["quantized"])
