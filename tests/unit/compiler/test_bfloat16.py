"""bfloat16 on CPUs: what is rounded, what not, and the values, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.codegen.cpu.dots import dot_kinds
from tilewright.codegen.cpu.target import host_target
from tilewright.compiler.options import make_options
from tilewright.core.errors import BadOption
from tilewright.kernel.dot import PAIRS
from unit.compiler.models import Floats, compiled, normal
from unit.graph.models import model_of, node, tensor_info

HAS_PAIRS = PAIRS in dot_kinds(host_target())
DENSE, ROWS, COLUMNS = 64, 14, 48
IMAGE = {"x": (1, 4, 5, 8), "w": (3, 4, 3, 2)}


def rounded(array: Any) -> Floats:
    """To the nearest bfloat16."""
    return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def in_pairs(a: Floats, b: Floats, begin: Floats | float = 0.0) -> Floats:
    """``begin + a @ b`` as vdpbf16ps sums it: of each pair of terms the second one first, each
    rounded.
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32) + np.asarray(begin, np.float32)
    for k in range(0, a.shape[1], 2):
        for place in (k + 1, k):
            total = total + a[:, place, None] * b[None, place]
    return total


def product_model(depth: int = DENSE) -> onnx.ModelProto:
    """``tanh(x) @ w + b``."""
    nodes = [
        node("Tanh", ["x"], ["t"], name="tanh"),
        node("MatMul", ["t", "w"], ["p"], name="product"),
        node("Add", ["p", "b"], ["y"], name="bias"),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", (ROWS, depth))],
        outputs=["y"],
        weights={"w": normal(depth, COLUMNS), "b": normal(COLUMNS)},
    )


def tanh_model(depth: int = DENSE) -> onnx.ModelProto:
    """What is rounded in ``product_model``."""
    return model_of(
        [node("Tanh", ["x"], ["y"])], inputs=[tensor_info("x", (ROWS, depth))], outputs=["y"]
    )


def reasons(engine: tw.Engine) -> dict[str, str]:
    """Why contractions stay in float32, by node."""
    return {
        one.subject: one.rejected[0][1]
        for one in engine.decisions
        if one.stage == "precision" and one.chosen == "float32"
    }


@pytest.mark.parametrize("cpu", [None, "haswell"])
def test_a_product_has_the_bits_of_its_rounded_operands(cpu: str | None) -> None:
    engine = compiled(product_model(), precision="bf16", cpu=cpu)
    feeds = {"x": normal(ROWS, DENSE, seed=3)}
    a, b = rounded(compiled(tanh_model(), cpu=cpu).run(feeds)["y"]), rounded(normal(DENSE, COLUMNS))
    got = engine.run(feeds)["y"]
    exact = a.astype(np.float64) @ b + normal(COLUMNS)
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-6 * float(np.abs(exact).max()))
    if cpu is None and HAS_PAIRS:
        np.testing.assert_array_equal(got, in_pairs(a, b, begin=normal(COLUMNS)))


def test_the_error_is_of_bfloat16_and_on_record() -> None:
    engine = compiled(product_model(), precision="bf16")
    assert 1e-4 < engine.summary["max_error"] < 6e-2
    assert engine.info["precision"] == "bf16"
    chosen = {d.chosen for d in engine.decisions if d.stage == "precision"}
    assert "products of bfloat16, sums in float32" in chosen
    tactics = [d.chosen.partition("(")[0] for d in engine.decisions if d.stage == "tactic"]
    assert ("dot_product" in tactics) is HAS_PAIRS


def convolutions(channels: int, **attributes: Any) -> onnx.ModelProto:
    """Two convolutions, the second of taps around each pixel or of none."""
    weights = {"w": normal(channels, 3, 1, 1), "v": normal(40, channels, 3, 3, seed=2) / 9}
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="one"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Conv", ["r", "v"], ["d"], name="two", **attributes),
        node("Sigmoid", ["d"], ["y"], name="sigmoid"),
    ]
    return model_of(nodes, inputs=[tensor_info("x", (1, 3, 9, 11))], outputs=["y"], weights=weights)


@pytest.mark.parametrize("cpu", [None, "haswell"])
@pytest.mark.parametrize("channels", [16, 24, 34])
def test_convolutions_are_those_of_rounded_operands(channels: int, cpu: str | None) -> None:
    attributes: dict[str, Any] = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    model = convolutions(channels, **attributes)
    engine = compiled(model, precision="bf16", cpu=cpu)
    assert reasons(engine)["one+relu"].startswith("3 products of a sum")
    feeds = {"x": normal(1, 3, 9, 11, seed=5)}
    # The same network of rounded numbers in float32: products of bfloat16 are exact there.
    parts = model_of(
        list(model.graph.node[:2]),
        inputs=[tensor_info("x", (1, 3, 9, 11))],
        outputs=["r"],
        weights={"w": normal(channels, 3, 1, 1)},
    )
    rest = model_of(
        list(model.graph.node[2:]),
        inputs=[tensor_info("r", (1, channels, 9, 11))],
        outputs=["y"],
        weights={"v": rounded(normal(40, channels, 3, 3, seed=2) / 9)},
    )
    middle = rounded(compiled(parts, cpu=cpu).run(feeds)["r"])
    want = compiled(rest, cpu=cpu).run({"r": middle})["y"]
    np.testing.assert_allclose(engine.run(feeds)["y"], want, atol=2e-6)


@pytest.mark.parametrize("cpu", [None, "haswell"])
@pytest.mark.parametrize(("taps", "stride"), [(3, 2), (7, 2), (4, 1)])
def test_first_convolutions_take_windows_along_rows(
    taps: int, stride: int, cpu: str | None
) -> None:
    weights = normal(32, 3, taps, taps) / taps
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="one", strides=[stride] * 2, pads=[taps // 2] * 4),
        node("Sigmoid", ["c"], ["y"], name="sigmoid"),
    ]
    inputs = [tensor_info("x", (2, 3, 18, 17))]
    model = model_of(nodes, inputs=inputs, outputs=["y"], weights={"w": weights})
    engine = compiled(model, precision="bf16", cpu=cpu)
    assert not reasons(engine)
    x = normal(2, 3, 18, 17, seed=4)
    exact = model_of(nodes, inputs=inputs, outputs=["y"], weights={"w": rounded(weights)})
    want = compiled(exact, cpu=cpu).run({"x": rounded(x)})["y"]
    np.testing.assert_allclose(engine.run({"x": x})["y"], want, atol=2e-6)
    if cpu is None and HAS_PAIRS:
        tactics = [d.chosen for d in engine.decisions if d.stage == "tactic"]
        assert any(text.startswith("dot_product") for text in tactics)


def test_data_beyond_the_caches_is_narrow_for_whoever_reads_it() -> None:
    nodes = [
        node("Conv", ["x", "v"], ["r"], name="first"),
        node("Conv", ["r", "w"], ["y"], name="depthwise", group=16, pads=[1] * 4),
    ]
    for side, narrow in ((64, False), (520, True)):
        model = model_of(
            nodes,
            inputs=[tensor_info("x", (1, 2, side, side))],
            outputs=["y"],
            weights={"w": normal(16, 1, 3, 3), "v": normal(16, 2, 1, 1)},
        )
        engine = compiled(model, precision="bf16", verify=False)
        said = [d.chosen for d in engine.decisions if d.subject == "depthwise"]
        assert any("exceeds the caches" in text for text in said) is narrow


def square(beside: bool) -> onnx.ModelProto:
    """A convolution for Winograd between others, perhaps with another reader of its data."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="one"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Conv", ["r", "v"], ["d"], name="two", pads=[1, 1, 1, 1]),
        node("Conv", ["d", "u"], ["y"], name="three"),
    ]
    weights = {"w": normal(64, 3, 1, 1), "v": normal(64, 64, 3, 3) / 24, "u": normal(8, 64, 1, 1)}
    if beside:
        nodes.append(node("Conv", ["r", "u"], ["z"], name="beside"))
    return model_of(
        nodes,
        inputs=[tensor_info("x", (1, 3, 24, 24))],
        outputs=["y", "z"] if beside else ["y"],
        weights=weights,
    )


def test_winograd_stays_in_float32_unless_its_data_is_rounded_anyway() -> None:
    engine = compiled(square(beside=False), precision="bf16")
    assert reasons(engine)["two"] == "Winograd's products in float32 are fewer"
    assert any(d.stage == "winograd" and d.chosen.startswith("F(") for d in engine.decisions)
    for model, options in ((square(beside=True), {}), (square(beside=False), {"winograd"})):
        engine = compiled(model, precision="bf16", disable=sorted(options))
        assert "two" not in reasons(engine)


def test_reasons_against() -> None:
    assert (
        "15 products of a sum"
        in reasons(compiled(product_model(15), precision="bf16"))["product+bias"]
    )
    model = product_model()
    model.graph.output.append(onnx.ValueInfoProto(name="t"))
    found = reasons(compiled(model, precision="bf16"))
    assert found["product+bias"] == "t is read outside of the segment, or is an input of it"


@pytest.mark.parametrize("cpu", [None, "haswell"])
def test_data_across_the_sum_is_turned(cpu: str | None) -> None:
    nodes = [
        node("Tanh", ["x"], ["t"], name="tanh"),
        node("Transpose", ["t"], ["u"], name="turn", perm=[1, 0]),
        node("MatMul", ["u", "w"], ["y"], name="product"),
    ]
    weights = normal(DENSE, 80)
    model = model_of(
        nodes, inputs=[tensor_info("x", (DENSE, ROWS))], outputs=["y"], weights={"w": weights}
    )
    engine = compiled(model, precision="bf16", cpu=cpu)
    assert not reasons(engine)
    x = normal(DENSE, ROWS, seed=7)
    tanh = compiled(
        model_of(nodes[:1], inputs=[tensor_info("x", (DENSE, ROWS))], outputs=["t"]), cpu=cpu
    )
    a, b = rounded(tanh.run({"x": x})["t"]).T, rounded(weights)
    got = engine.run({"x": x})["y"]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=0, atol=1e-5)
    if cpu is None and HAS_PAIRS:
        np.testing.assert_array_equal(got, in_pairs(np.ascontiguousarray(a), b))


def two_tensors(rows: int, terms: int, columns: int, *, turned: bool) -> onnx.ModelProto:
    """``tanh(a) @ tanh(b)`` of two batches; ``turned``: b comes with its columns first."""
    shape = (2, columns, terms) if turned else (2, terms, columns)
    nodes = [
        node("Tanh", ["a"], ["s"], name="left"),
        node("Tanh", ["b"], ["t"], name="right"),
        node("Transpose", ["t"], ["u"], name="turn", perm=[0, 2, 1] if turned else [0, 1, 2]),
        node("MatMul", ["s", "u"], ["y"], name="product"),
    ]
    inputs = [tensor_info("a", (2, rows, terms)), tensor_info("b", shape)]
    return model_of(nodes, inputs=inputs, outputs=["y"])


@pytest.mark.skipif(not HAS_PAIRS, reason="no instruction for pairs")
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_two_computed_tensors_have_the_bits_of_their_pairs(turned: bool) -> None:
    engine = compiled(two_tensors(20, 64, 48, turned=turned), precision="bf16")
    said = {d.chosen for d in engine.decisions if d.stage == "precision"}
    assert "products of bfloat16 in pairs, sums in float32" in said
    a, b = normal(2, 20, 64), normal(2, 48, 64) if turned else normal(2, 64, 48)
    found = engine.run({"a": a, "b": b})["y"]
    tanh = compiled(
        model_of([node("Tanh", ["x"], ["y"])], inputs=[tensor_info("x", ("n", "m"))], outputs=["y"])
    )
    for batch in range(2):
        left, right = (rounded(tanh.run({"x": part[batch]})["y"]) for part in (a, b))
        np.testing.assert_array_equal(found[batch], in_pairs(left, right.T if turned else right))


@pytest.mark.skipif(not HAS_PAIRS, reason="no instruction for pairs")
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((20, 63, 48), "63 products of a sum"),
        ((20, 64, 40), "40 columns are no whole vectors"),
        ((4, 64, 48), "too few rows use the right operand"),
    ],
)
def test_reasons_against_pairs(sizes: tuple[int, int, int], reason: str) -> None:
    engine = compiled(two_tensors(*sizes, turned=False), precision="bf16")
    (found,) = reasons(engine).values()
    assert found.startswith(reason)


@pytest.mark.skipif(not HAS_PAIRS, reason="no instruction for pairs")
def test_pairs_and_first_convolutions_live_in_one_segment() -> None:
    model = two_tensors(20, 64, 48, turned=True)
    model.graph.node.append(node("Conv", ["x", "w"], ["z"], name="first", pads=[1] * 4))
    model.graph.input.append(tensor_info("x", (1, 3, 12, 12)))
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(16, 3, 3, 3), "w"))
    engine = compiled(model, precision="bf16")
    assert not reasons(engine)
    tactics = [d.chosen for d in engine.decisions if d.stage == "tactic"]
    assert sum(text.startswith("dot_product") for text in tactics) == 2


def test_without_the_instruction_products_of_computed_tensors_stay() -> None:
    engine = compiled(two_tensors(20, 64, 48, turned=False), precision="bf16", cpu="haswell")
    assert engine.summary["max_error"] < 1e-5


def test_values_in_steps_of_a_loop_stay_as_they_are() -> None:
    weights = {"w": normal(1, 64, 16), "r": normal(1, 64, 16)}
    model = model_of(
        [
            node("Tanh", ["x"], ["t"]),
            node("LSTM", ["t", "w", "r"], ["y"], hidden_size=16),
        ],
        inputs=[tensor_info("x", (5, 2, 16))],
        outputs=["y"],
        weights=weights,
    )
    assert compiled(model, precision="bf16").summary["max_error"] < 6e-2


def test_not_a_number_and_infinity_pass() -> None:
    engine = compiled(product_model(), precision="bf16")
    x = normal(ROWS, DENSE)
    x[2, 3] = np.nan
    found = engine.run({"x": x})["y"]
    assert np.isnan(found[2]).all()
    assert np.isfinite(np.delete(found, 2, axis=0)).all()


def test_precisions_belong_to_targets() -> None:
    given: dict[str, Any] = {"cpu": None, "threads": 1, "dims": None, "require": None}
    for target in ("cpu", "sm_90"):
        assert make_options(target=target, precision="bf16", **given).precision == "bf16"
    with pytest.raises(BadOption, match="fp16 is for GPUs"):
        make_options(target="cpu", precision="fp16", **given)


def test_pairs_of_a_model_in_bfloat16_need_the_instruction() -> None:
    """A sum of two products in the model's own types looks like a dot product."""
    weights = {"w": normal(2, 16).astype(ml_dtypes.bfloat16)}
    dtype = onnx.TensorProto.BFLOAT16
    model = model_of(
        [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "w"], ["y"])],
        inputs=[tensor_info("x", (4, 2), dtype)],
        outputs=["y"],
        weights=weights,
    )
    x = rounded(normal(4, 2)).astype(ml_dtypes.bfloat16)
    for cpu in (None, "haswell"):
        compiled(model, cpu=cpu).run({"x": x})


def test_taps_beside_an_image_are_not_read() -> None:
    """Pairs of taps at the edges: one of them is a border of zeros, which no memory holds."""
    kinds = {"x": ml_dtypes.bfloat16, "w": ml_dtypes.bfloat16}
    x, w = (normal(*shape).astype(kinds[name]) for name, shape in IMAGE.items())
    model = model_of(
        [node("Conv", ["x", "w"], ["y"], pads=[0, 1, 0, 1])],
        inputs=[tensor_info("x", IMAGE["x"], onnx.TensorProto.BFLOAT16)],
        outputs=["y"],
        weights={"w": w},
        opset=22,
    )
    around = np.full(x.size + 2, np.nan, ml_dtypes.bfloat16)
    around[1:-1] = x.reshape(-1)
    found = compiled(model)(x=around[1:-1].reshape(x.shape))["y"]
    assert np.isfinite(found.astype(np.float32)).all()
