"""Small programs of host steps, made by hand.

Input -> Output: operators by name -> ``Interpret`` steps; programs -> values, without native code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.core.dtypes import BOOL, FLOAT32, INT64, DType
from tilewright.core.shape import Dim
from tilewright.runtime.cpu.native import NativeCode
from tilewright.runtime.executor import Executor, Run
from tilewright.runtime.program import Interpret, Program, Step, TensorSpec


def spec(name: str, *shape: Dim | int | str, dtype: DType = FLOAT32) -> TensorSpec:
    """A tensor's spec; texts are symbols."""
    dims = (Dim.symbol(dim) if isinstance(dim, str) else Dim.of(dim) for dim in shape)
    return TensorSpec(name=name, dtype=dtype, shape=tuple(dims))


def scalar(name: str, dtype: DType = INT64) -> TensorSpec:
    """A scalar's spec."""
    return spec(name, dtype=dtype)


def flag(name: str) -> TensorSpec:
    """A condition's spec."""
    return spec(name, dtype=BOOL)


def unknown(name: str, dtype: DType = FLOAT32) -> TensorSpec:
    """A tensor whose rank is not known."""
    return TensorSpec(name=name, dtype=dtype, shape=None)


def op(
    op_type: str, inputs: str | Sequence[str | None], *outputs: TensorSpec, **attributes: Any
) -> Interpret:
    """An operator by its reference."""
    names = tuple(inputs.split()) if isinstance(inputs, str) else tuple(inputs)
    return Interpret(
        node=f"{op_type} of {outputs[0].name}",
        domain="",
        op_type=op_type,
        opset=21,
        attributes=attributes,
        inputs=names,
        outputs=outputs,
    )


def program(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *steps: Step) -> Program:
    """A program of these steps."""
    return Program(inputs=tuple(inputs), outputs=tuple(outputs), steps=steps)


def run(
    what: Program, feeds: Mapping[str, Any], constants: Mapping[str, Any] | None = None
) -> tuple[list[Any], Run]:
    """The outputs, and what the run knows at its end."""
    executor = Executor(dict(constants or {}), NativeCode({}, {}, 1))
    state = Run({})
    for own in what.inputs:
        executor.settle(own, np.asarray(feeds[own.name]), state)
    executor.execute(what, state)
    return executor.outputs(what, state), state
