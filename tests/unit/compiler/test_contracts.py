"""Contracts: each is kept, or refused with the nodes and reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.compiler.options import Require
from tilewright.core.errors import BadOption, ContractBreach
from unit.compiler.models import compiled, network
from unit.graph.models import model_of, node, tensor_info


def halves() -> onnx.ModelProto:
    """A product of float16 numbers after one of float32 numbers."""
    return model_of(
        [
            node("MatMul", ["x", "w"], ["p"], name="wide"),
            node("Cast", ["p"], ["q"], name="narrow", to=onnx.TensorProto.FLOAT16),
            node("MatMul", ["q", "v"], ["r"], name="half"),
            node("Cast", ["r"], ["y"], name="back", to=onnx.TensorProto.FLOAT),
        ],
        inputs=[tensor_info("x", (3, 4))],
        weights={"w": np.ones((4, 4), np.float32), "v": np.ones((4, 4), np.float16)},
        opset=21,
    )


def test_contracts_that_hold_change_nothing() -> None:
    plain = compiled(network(), verify=False)
    bound = compiled(
        network(),
        verify=False,
        require=["compiled", "deterministic", "device=cpu", "dtypes=float32"],
    )
    assert bound.program == plain.program


def test_another_device_is_refused_with_every_node() -> None:
    with pytest.raises(ContractBreach) as caught:
        compiled(network(), verify=False, require={"device": "cuda"})
    message = str(caught.value)
    assert "device=cuda is required" in message
    for name in ("conv (Conv)", "gemm (Gemm)", "softmax (Softmax)"):
        assert f"{name}: the target is cpu" in message


def test_another_type_is_refused_with_its_nodes() -> None:
    with pytest.raises(ContractBreach) as caught:
        compiled(network(), verify=False, require={"dtypes": ["int8", "float64"]})
    message = str(caught.value)
    assert "dtypes=int8+float64 is required" in message
    assert "gemm (Gemm)" in message
    assert "computes in float32" in message


def test_indices_and_masks_are_no_precision() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Greater", ["x", "zero"], ["positive"], name="greater"),
        node("Where", ["positive", "x", "zero"], ["y"], name="where"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 4))],
        outputs=["y", "s"],
        weights={"zero": np.float32(0)},
        opset=21,
    )
    compiled(model, verify=False, require={"dtypes": "float32"})


def test_narrow_floats_are_on_record() -> None:
    decisions = compiled(halves(), verify=False).decisions
    found = [d for d in decisions if d.stage == "precision"]
    assert found
    assert all("float16 in memory, float32 in registers" in d.chosen for d in found)
    assert not any(d.stage == "precision" for d in compiled(network(), verify=False).decisions)


def test_interpreted_nodes_give_types_too() -> None:
    model = model_of(
        [node("Unique", ["x"], ["y"], name="unique")], inputs=[tensor_info("x", (6,))], opset=21
    )
    with pytest.raises(ContractBreach, match=r"unique \(Unique\): gives float32"):
        compiled(model, verify=False, require={"dtypes": "int8"})
    with pytest.raises(ContractBreach, match="unique"):
        compiled(model, verify=False, require=["compiled"])


def noisy(**attributes: Any) -> onnx.ModelProto:
    """Noise of a shape, added to the input."""
    nodes = [
        node("RandomNormalLike", ["x"], ["noise"], name="draw", **attributes),
        node("Add", ["x", "noise"], ["y"], name="add"),
    ]
    return model_of(nodes, inputs=[tensor_info("x", (2, 3))], opset=21)


def test_chance_is_refused_where_results_must_be_equal() -> None:
    with pytest.raises(ContractBreach) as caught:
        compiled(noisy(), verify=False, require=["deterministic"])
    assert "deterministic is required, but 1 node would give other results" in str(caught.value)
    assert "draw (RandomNormalLike): draws random numbers without a seed" in str(caught.value)
    assert "give these nodes a `seed`" in str(caught.value)
    engine = compiled(noisy(seed=1.0), verify=False, require=["deterministic"])
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(engine(x=x)["y"], engine(x=x)["y"])


def test_chance_inside_a_branch_is_found() -> None:
    def branch(name: str, op_type: str) -> onnx.GraphProto:
        made = node(op_type, ["x"], [name], name=f"{name}_{op_type}")
        return onnx.helper.make_graph([made], name, [], [tensor_info(name, (2, 3))])

    model = model_of(
        [
            node(
                "If",
                ["c"],
                ["y"],
                name="if",
                then_branch=branch("a", "RandomUniformLike"),
                else_branch=branch("b", "Neg"),
            )
        ],
        inputs=[tensor_info("c", (), onnx.TensorProto.BOOL), tensor_info("x", (2, 3))],
        opset=21,
    )
    with pytest.raises(ContractBreach, match="a_RandomUniformLike"):
        compiled(model, verify=False, require={"deterministic": True})


def test_a_dropout_that_may_train_is_chance() -> None:
    model = model_of(
        [node("Dropout", ["x", "ratio", "train"], ["y"], name="drop")],
        inputs=[tensor_info("x", (2, 3)), tensor_info("train", (), onnx.TensorProto.BOOL)],
        weights={"ratio": np.array(0.5, np.float32)},
        opset=21,
    )
    with pytest.raises(ContractBreach, match=r"drop \(Dropout\)"):
        compiled(model, verify=False, require=["deterministic"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("dtypes=float32+int8", ("float32", "int8")),
        ({"dtypes": ["float32", "float32"]}, ("float32",)),
    ],
)
def test_types_are_read(given: Any, expected: tuple[str, ...]) -> None:
    assert Require.of([given] if isinstance(given, str) else given).dtypes == expected


@pytest.mark.parametrize("given", ["dtypes=float33", "dtypes=", "device=", "fast"])
def test_nonsense_is_refused(given: str) -> None:
    with pytest.raises(BadOption):
        Require.of([given])


def test_a_disabled_tactic_is_not_chosen_and_says_so() -> None:
    engine = compiled(network(), verify=False, disable=["contraction"])
    tactics = [d for d in engine.decisions if d.stage == "tactic"]
    assert not any(d.chosen.startswith("contraction") for d in tactics)
    assert any(("contraction", "disabled by an option") in d.rejected for d in tactics)
    assert list(engine.info["disabled"]) == ["contraction"]


@pytest.mark.parametrize("name", ["scalar", "magic"])
def test_what_cannot_be_disabled_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="cannot be disabled"):
        compiled(network(), verify=False, disable=[name])
