"""Runs one lowering on arrays without shape rules: with constant dims, or with every dim a symbol.

Input -> Output: an operator, arrays, attributes, params -> outputs, by ``verify``/``interpret``.
Guarantees: symbolic runs know neither contents nor relations between dims, so that a lowering that
assumes either fails here.
Not here: whole models and inferred params (harness).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import tilewright.lower.concat_split
import tilewright.lower.detection
import tilewright.lower.gather
import tilewright.lower.generate
import tilewright.lower.movement
import tilewright.lower.nonzero
import tilewright.lower.resize
import tilewright.lower.scatter
import tilewright.lower.slice_pad
import tilewright.lower.spatial
import tilewright.lower.topk  # noqa: F401
from tilewright.core.dtypes import from_numpy
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.view import NodeView
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Buffer, Kernel
from tilewright.kernel.verify import verify
from tilewright.lower.context import Lowering
from tilewright.lower.registry import LOWERINGS

Array = npt.NDArray[Any]


def lower(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[tuple[Any, tuple[int, ...]]],
    *,
    attributes: Mapping[str, Any] | None = None,
    params: Mapping[str, Sequence[int]] | None = None,
    symbolic: bool = False,
    fixed: Sequence[int] = (),
) -> tuple[Lowering, dict[str, int]]:
    """Lowers one operator.

    Args:
        op_type: an operator of ai.onnx.
        inputs: arrays, None where absent.
        outputs: NumPy type and shape of each output.
        attributes: plain values.
        params: what the shape rule would say.
        symbolic: give each dim and param a symbol of its own and hide the contents.
        fixed: positions of inputs whose dims stay constant all the same.

    Returns:
        The lowering and the sizes of its symbols.
    """
    sizes: dict[str, int] = {}

    def dims(name: str, values: Sequence[int], constant: bool = False) -> tuple[Dim, ...]:
        if not symbolic or constant:
            return tuple(Dim.of(value) for value in values)
        names = [f"{name}.{k}" for k in range(len(values))]
        sizes.update(zip(names, map(int, values), strict=True))
        return tuple(map(Dim.symbol, names))

    buffers = tuple(
        None
        if array is None
        else Buffer(f"x{k}", from_numpy(array.dtype), dims(f"x{k}", array.shape, k in fixed))
        for k, array in enumerate(inputs)
    )
    results = tuple(
        Buffer(f"y{k}", from_numpy(np.dtype(dtype)), dims(f"y{k}", shape))
        for k, (dtype, shape) in enumerate(outputs)
    )
    known = {name: dims(name, values) for name, values in (params or {}).items()}
    lowering = Lowering(
        node=NodeView(
            name="node",
            op_type=op_type,
            domain="",
            opset=99,
            inputs=tuple(None if buffer is None else buffer.name for buffer in buffers),
            outputs=tuple(buffer.name for buffer in results),
            attributes=attributes or {},
        ),
        info=NodeInfo(
            outputs=tuple(TensorInfo(dtype=b.dtype, shape=b.shape) for b in results),
            params=known,
        ),
        inputs=buffers,
        contents=tuple(None if symbolic else array for array in inputs),
        outputs=results,
    )
    LOWERINGS["", op_type](lowering)
    return lowering, sizes


def execute(
    lowering: Lowering, inputs: Sequence[Array | None], sizes: Mapping[str, int]
) -> list[Array]:
    """Verifies and interprets the items of a lowering."""
    arrays = dict(lowering.constants)
    arrays.update({f"x{k}": array for k, array in enumerate(inputs) if array is not None})
    for item in lowering.items:
        if isinstance(item, Kernel):
            verify(item)
            feeds = {buffer.name: arrays[buffer.name] for buffer in item.inputs}
            arrays.update(interpret(item, feeds, sizes))
        else:
            shape = tuple(dim.evaluate(sizes) for dim in item.target.shape)
            arrays[item.target.name] = arrays[item.source.name].reshape(shape)
    return [arrays[f"y{k}"] for k in range(len(lowering.outputs))]


def run(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[tuple[Any, tuple[int, ...]]],
    **how: Any,
) -> list[Array]:
    """Lowers and executes one operator (see ``lower``)."""
    lowering, sizes = lower(op_type, inputs, outputs, **how)
    return execute(lowering, inputs, sizes)
