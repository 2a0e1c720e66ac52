"""Functions in integers, compiled: equal to their reference in every bit, without any float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tilewright.codegen.cpu.target import named_target
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.core.errors import InvalidModel
from tilewright.runtime import reference
from tilewright.runtime.reference.integer_only import DOMAIN, ELEMENTWISE, weights_of
from unit.codegen.no_floats import (
    assert_no_floats,
    float_instructions,
    float_types,
    ptx_floats,
)
from unit.graph.models import model_of, node, tensor_info

Array = npt.NDArray[Any]
CODES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16}
OPERATORS = [*ELEMENTWISE, "IntegerSoftmax", "IntegerLayerNormalization"]


def parameters(op_type: str, x: str, y: str, size: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Attributes and weights of a call."""
    wide, signed = x == "int16", y != "uint8"
    steps = 32767 if y == "int16" else 255
    attributes: dict[str, Any] = {
        "x_scale": float(np.float32(8 / 32767 if wide else 0.06)),  # as attributes are stored
        "x_zero": 0 if wide else 3,
        "y_scale": float(np.float32(4 / steps)),
        "y_zero": (0 if y == "int16" else -100) if signed else 7,
        "y_type": CODES[y],
    }
    if op_type != "IntegerLayerNormalization":
        return attributes, {}
    rng = np.random.default_rng(0)
    found = weights_of(rng.normal(1, 0.3, size), rng.normal(0, 0.3, size), 4 / steps, size)
    assert found is not None
    more = {"size": size, "norm_bits": found[2].norm, "gamma_bits": found[2].gamma}
    return {**attributes, **more, "epsilon": float(np.float32(1e-5))}, {
        "gamma": found[0],
        "beta": found[1],
    }


def model(op_type: str, shape: Any, x: str, y: str, **changed: Any) -> onnx.ModelProto:
    attributes, weights = parameters(op_type, x, y, shape[-1])
    call = node(op_type, ["x", *weights], ["y"], name="f", domain=DOMAIN, **attributes | changed)
    inputs = [tensor_info("x", shape, CODES[x])]
    return model_of([call], inputs=inputs, weights=weights, opset=21, domains=[DOMAIN])


def expected(op_type: str, x: Array, kind: str, y: str) -> Any:
    attributes, weights = parameters(op_type, kind, y, x.shape[-1])
    inputs = [x, *weights.values()]
    return reference.evaluate(DOMAIN, op_type, inputs, attributes, opset=1)[0]


def every_input(kind: str, size: int) -> Array:
    """Each integer that there is, shuffled, in rows."""
    limits = np.iinfo(kind)
    found = np.arange(limits.min, limits.max + 1)
    return np.random.default_rng(1).permutation(found).reshape(-1, size).astype(kind)


@pytest.mark.parametrize(("x", "y"), [("int8", "int8"), ("uint8", "int16"), ("int16", "uint8")])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_engines_give_the_reference_s_integers(op_type: str, x: str, y: str) -> None:
    data = every_input(x, 64)
    proto = model(op_type, ("n", 64), x, y)
    engine = tw.compile(proto, threads=1, cache=None, verify=False, require=["compiled"])
    np.testing.assert_array_equal(engine(x=data)["y"], expected(op_type, data, x, y))


@pytest.mark.parametrize("cpu", ["host", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_no_kernel_has_a_float(op_type: str, cpu: str, tmp_path: Path) -> None:
    proto = model(op_type, ("n", 64), "int8", "int8")
    folder = tmp_path / "kernels"
    tw.compile(proto, threads=1, cache=None, verify=False, cpu=cpu, dump_kernels=folder)
    assert_no_floats(folder, named_target(cpu))


def test_floats_would_be_seen(tmp_path: Path) -> None:
    proto = model_of([node("Exp", ["x"], ["y"])], inputs=[tensor_info("x", (64,))])
    tw.compile(proto, threads=1, cache=None, verify=False, cpu="haswell", dump_kernels=tmp_path)
    (file,) = tmp_path.glob("*.ll")
    assert float_types(file.read_text()) == {"float"}
    found = float_instructions(file.read_text(), named_target("haswell"))
    assert any(name.startswith("vfmadd") for name in found)
    with pytest.raises(AssertionError):
        assert_no_floats(tmp_path, named_target("haswell"))


@pytest.mark.nvrtc
@pytest.mark.parametrize("op_type", OPERATORS)
def test_kernels_of_gpus_have_no_float_either(op_type: str, tmp_path: Path) -> None:
    proto = model(op_type, ("n", 64), "int8", "int8")
    folder = tmp_path / "kernels"
    tw.compile(proto, target="sm_90", cache=None, dump_kernels=folder, require=["compiled"])
    files = list(folder.glob("*.cu"))
    assert files
    for file in files:
        compiled = compile_text(file.read_text(), "sm_90")
        assert compiled.cubin.startswith(b"\x7fELF")
        assert not ptx_floats(compiled.ptx.decode())


def test_rows_of_nothing() -> None:
    proto = model("IntegerSoftmax", ("n", 8), "int8", "int8")
    engine = tw.compile(proto, threads=1, cache=None)
    assert engine(x=np.zeros((0, 8), np.int8))["y"].shape == (0, 8)


@pytest.mark.parametrize(
    ("op_type", "changed", "message"),
    [
        ("IntegerExp", {"y_scale": 0.0}, "no positive number"),
        ("IntegerExp", {"x_scale": 1e3}, "do not fit"),
        ("IntegerExp", {"y_type": TensorProto.INT32}, "at most 16 bits"),
        ("IntegerExp", {"y_type": 99}, "no element type"),
        ("IntegerSqrt", {"y_scale": 1e-6}, "roots are beyond"),
        ("IntegerLayerNormalization", {"size": 9}, "but rows have 64"),
    ],
)
def test_parameters_without_a_function_are_refused(
    op_type: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        tw.compile(model(op_type, (2, 64), "int8", "int8", **changed), cache=None)


def test_types_and_rows_without_a_function_are_refused() -> None:
    with pytest.raises(InvalidModel, match="has a zero point"):
        tw.compile(model("IntegerGelu", (2, 64), "int16", "int8", x_zero=1), cache=None)
    with pytest.raises(InvalidModel, match="must be known"):
        tw.compile(model("IntegerSoftmax", (2, 5000), "int8", "int8"), cache=None)
