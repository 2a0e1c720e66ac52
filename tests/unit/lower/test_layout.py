"""Blocked layouts and packed constants: same values, every refusal with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.kernel.blocked import Blocker
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Kernel
from tilewright.lower import layout

RNG = np.random.default_rng(7)


def _network(nodes: list[Any], weights: dict[str, Any], shape: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def _weight(*shape: int) -> Any:
    scaled = RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return scaled.astype(np.float32)


def _conv(x: str, w: str, y: str, **attributes: Any) -> Any:
    return helper.make_node("Conv", [x, w], [y], **attributes)


def _check(model: onnx.ModelProto, shape: tuple[int, ...]) -> Any:
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    engine = tw.compile(model, verify=False, cache=None, threads=2)
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    return engine


def _layouts(engine: Any) -> dict[str, tuple[str, str]]:
    return {
        d.subject: (d.chosen, d.rejected[0][1] if d.rejected else "")
        for d in engine.decisions
        if d.stage == "layout"
    }


@pytest.mark.parametrize("channels", [16, 24, 32, 40])
@pytest.mark.parametrize("size", [7, 14, 17])
def test_chain_with_borders_strides_and_residual(channels: int, size: int) -> None:
    c = channels
    pads = [1, 1, 1, 1]
    nodes = [
        _conv("x", "w0", "a", pads=pads),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv("b", "w1", "c", pads=pads, group=c),
        _conv("c", "w2", "d", pads=[0, 0, 0, 0]),
        helper.make_node("Add", ["d", "b"], ["e"]),
        _conv("e", "w3", "y", pads=[0, 1, 1, 0], strides=[2, 2]),
    ]
    weights = {
        "w0": _weight(c, 3, 3, 3),
        "w1": _weight(c, 1, 3, 3),
        "w2": _weight(c, c, 1, 1),
        "w3": _weight(5, c, 3, 3),
    }
    engine = _check(_network(nodes, weights, [2, 3, size, size]), (2, 3, size, size))
    assert any(chosen.startswith("channels in blocks") for chosen, _ in _layouts(engine).values())


@pytest.mark.parametrize("channels", [24, 32, 40])
@pytest.mark.parametrize(
    "reader",
    [
        helper.make_node("Softmax", ["a"], ["b"], axis=1),
        helper.make_node("ReduceMax", ["a", "one"], ["b"]),
        helper.make_node("ReduceMin", ["a", "one"], ["b"]),
        helper.make_node("ReduceProd", ["a", "one"], ["b"]),
        helper.make_node("ReduceLogSumExp", ["a", "one"], ["b"]),
        helper.make_node("ReduceMean", ["a", "one"], ["b"]),
        helper.make_node("ArgMax", ["a"], ["b"], axis=1),
        helper.make_node("LpNormalization", ["a"], ["b"], axis=1),
    ],
    ids=lambda node: node.op_type,
)
def test_padding_takes_no_part_in_reductions_over_channels(channels: int, reader: Any) -> None:
    nodes = [_conv("x", "w0", "a"), reader, helper.make_node("Cast", ["b"], ["y"], to=1)]
    weights = {"w0": -np.abs(_weight(channels, 3, 1, 1)), "one": np.array([1], dtype=np.int64)}
    model = _network(nodes, weights, [2, 3, 5, 7])
    feeds = {"x": np.abs(RNG.standard_normal((2, 3, 5, 7))).astype(np.float32)}
    engine = tw.compile(model, verify=False, cache=None)
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    np.testing.assert_allclose(engine.run(feeds)["y"], want, rtol=2e-5, atol=1e-7)


def test_symbolic_sizes_keep_borders() -> None:
    nodes = [_conv("x", "w0", "a", pads=[1, 1, 1, 1]), _conv("a", "w1", "y", pads=[1, 1, 1, 1])]
    weights = {"w0": _weight(16, 3, 3, 3), "w1": _weight(16, 16, 3, 3)}
    model = _network(nodes, weights, ["n", 3, "h", "w"])
    engine = tw.compile(model, verify=False, cache=None)
    graph = Model.load(model, DecisionLog()).original
    for shape in ((1, 3, 5, 9), (2, 3, 16, 31), (1, 3, 1, 1)):
        feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
        want = reference(graph, feeds)["y"]
        assert np.abs(engine.run(feeds)["y"] - want).max() <= 1e-5 * np.abs(want).max()


def test_concat_of_blocked_and_padded_channels() -> None:
    nodes = [
        _conv("x", "w0", "a"),
        _conv("x", "w1", "b"),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        _conv("c", "w2", "y"),
    ]
    for first in (16, 24):
        weights = {
            "w0": _weight(first, 3, 1, 1),
            "w1": _weight(16, 3, 1, 1),
            "w2": _weight(8, first + 16, 1, 1),
        }
        _check(_network(nodes, weights, [1, 3, 6, 6]), (1, 3, 6, 6))


@pytest.mark.parametrize(("apart", "block"), [(False, 12), (True, 8)])
def test_channels_that_only_sums_read_are_one_block(apart: bool, block: int) -> None:
    """In blocks of 8 a quarter of what the second convolution multiplies would be zeros."""
    nodes = [
        _conv("x", "w0", "a"),
        helper.make_node("GlobalMaxPool" if apart else "Relu", ["a"], ["s"]),
        *([helper.make_node("Mul", ["a", "s"], ["t"])] if apart else []),
        _conv("t" if apart else "s", "w1", "b", pads=[0, 0, 1, 1]),
        _conv("b", "w2", "y"),
    ]
    weights = {"w0": _weight(12, 3, 2, 2), "w1": _weight(16, 12, 2, 2), "w2": _weight(8, 16, 1, 1)}
    engine = _check(_network(nodes, weights, [1, 3, 20, 20]), (1, 3, 20, 20))
    haswell = tw.compile(
        _network(nodes, weights, [1, 3, 20, 20]), verify=True, cache=None, cpu="haswell"
    )
    assert _layouts(haswell)["t" if apart else "s"][0] == f"channels in blocks of {block}"
    assert _layouts(engine)["b"][0].startswith("channels in blocks of")


def test_lanes_past_a_padded_concat_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding of 69 channels must not reach into a third block of a buffer of 23."""
    nodes = [
        _conv("x", "w0", "a", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Concat", ["a", "s", "a"], ["c"], axis=1),
        helper.make_node("ConvTranspose", ["c", "w1"], ["y"]),
    ]
    weights = {"w0": _weight(23, 4, 3, 3), "w1": _weight(69, 2, 3, 3)}
    read: list[tuple[str, int, int]] = []

    class Spy(Blocker):
        def kernel(self, kernel: Kernel, split: Mapping[str, int] | None = None) -> Kernel:
            made = super().kernel(kernel, split)
            for stage in made.stages:
                feeds = {b.name: np.zeros([d.const for d in b.shape], "f4") for b in made.inputs}
                if len(made.stages) and "Concat" in made.name:
                    interpret(made, feeds, {})  # raises where an active load is out of bounds
                    read.append((made.name, len(stage.axes), len(feeds)))
            return made

    monkeypatch.setattr(layout, "Blocker", Spy)
    _check(_network(nodes, weights, [1, 4, 6, 7]), (1, 4, 6, 7))
    assert read


@pytest.mark.parametrize(
    "between",
    [
        [helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3])],
        [
            helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 3, 1]),
            helper.make_node("LayerNormalization", ["t", "scale"], ["l"], axis=-1),
            helper.make_node("Transpose", ["l"], ["u"], perm=[0, 3, 1, 2]),
            helper.make_node("Softmax", ["u"], ["b"], axis=3),
        ],
    ],
    ids=["two axes change places", "a softmax along columns"],
)
def test_an_axis_that_is_padded_elsewhere_is_not_stored_past_its_size(between: list[Any]) -> None:
    """13 rows, or channels, are 16 where they lie in blocks, and 13 beside other blocks."""
    nodes = [
        _conv("x", "w0", "a", pads=[1, 1, 1, 1]),
        *between,
        helper.make_node("Relu", ["b"], ["c"]),
        _conv("c", "w1", "y", pads=[1, 1, 1, 1]),
    ]
    rows, channels = (8, 13) if len(between) == 1 else (13, 8)
    weights = {
        "w0": _weight(channels, 8, 3, 3),
        "w1": _weight(8, 8, 3, 3),
        "scale": np.ones(channels, np.float32),
    }
    engine = _check(_network(nodes, weights, [1, 8, rows, 7]), (1, 8, rows, 7))
    blocks = {chosen for chosen, _ in _layouts(engine).values()}
    assert {"channels in blocks of 8", "channels in blocks of 16"} <= blocks


@pytest.mark.parametrize(
    ("width", "reason"),
    [(3, "would be padded"), (16, "is read under another shape")],
)
def test_refusals(width: int, reason: str) -> None:
    nodes = [
        _conv("x", "w0", "a"),
        helper.make_node("Reshape", ["a", "s"], ["b"])
        if width == 16
        else helper.make_node("Relu", ["a"], ["b"]),
        _conv("b", "w1", "y"),
    ]
    weights = {
        "w0": _weight(width, 3, 1, 1),
        "w1": _weight(4, width, 1, 1),
        "s": np.array([1, width, 3, 12], dtype=np.int64),
    }
    engine = _check(_network(nodes, weights, [1, 3, 6, 6]), (1, 3, 6, 6))
    assert any(reason in why for _, why in _layouts(engine).values())


def test_matrix_product_packs_its_constant() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    engine = _check(_network(nodes, {"w": _weight(48, 96)}, [5, 48]), (5, 48))
    assert any(d.stage == "pack" for d in engine.decisions)


def test_a_batch_of_constant_matrices_is_packed_into_panels() -> None:
    """Unpacked, a panel's rows are a matrix's row apart; 24 columns are one panel as they are."""
    for columns, axes in ((64, 4), (24, 3)):
        weight = _weight(9, 48, columns)
        model = _network(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, [9, 20, 48]
        )
        engine = _check(model, (9, 20, 48))
        (chosen,) = (d.chosen for d in engine.decisions if d.stage == "pack")
        assert chosen.count("*") == axes


@pytest.mark.parametrize(
    ("cpu", "columns", "stored"),
    [
        ("haswell", 24, 24),
        ("haswell", 72, 72),  # three panels of 24, not five of 16
        ("haswell", 48, 48),
        ("haswell", 40, 48),
        ("skylake-avx512", 48, 48),
        ("skylake-avx512", 80, 96),
    ],
)
def test_panels_have_two_or_three_vectors_as_less_is_padded(
    cpu: str, columns: int, stored: int
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = _network(nodes, {"w": _weight(48, columns)}, [5, 48])
    engine = tw.compile(model, cpu=cpu, threads=1, verify=False)
    (packed,) = (array for name, array in engine.parts.constants.items() if "packed" in name)
    assert packed.size == 48 * stored


@pytest.mark.parametrize("batch", [8, 16])
def test_values_of_algorithms_keep_their_order(batch: int) -> None:
    """A batch of 8 or 16 is no dim of channels; results of algorithms alone are in blocks too."""
    nodes = [
        _conv("x", "w", "a", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv("b", "v", "c", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ]
    weights = {"w": _weight(64, 64, 3, 3), "v": _weight(64, 64, 3, 3)}
    layouts = _layouts(_check(_network(nodes, weights, [batch, 64, 8, 8]), (batch, 64, 8, 8)))
    tiles = [chosen for name, chosen in layouts.items() if "winograd" in name]
    assert set(tiles) == {("row-major", "an algorithm has its own order for it")}
    assert layouts["b"][0] == layouts["d"][0] == "channels in blocks of 16"
