"""A plain, read-only picture of a graph: what shape rules, the reference and lowering read.

Input -> Output: passes work on ``onnx_ir.Model``; ``graph.load.view(model)`` gives this.
Guarantees: no onnx types; value names are unique over a graph and all of its sub-graphs (a
sub-graph may read names of the graphs around it); nodes are in topological order.
Not here: building or editing graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import DType
from tilewright.core.shape import Dim

Array = npt.NDArray[Any]
Attribute: TypeAlias = "int | float | str | bytes | Sequence[Any] | Array | GraphView | ValueView"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One operator call.

    Attributes:
        name: unique in the model.
        domain: ``""`` for ai.onnx.
        opset: version of the domain whose semantics hold (the newest after normalisation).
        inputs, outputs: value names; None where an optional one is absent.
        attributes: plain Python values; tensors as arrays, sub-graphs as ``GraphView``.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value, or the default when it is absent."""
        return self.attributes.get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueView:
    """A graph input's or output's declaration; ``shape`` is None when its rank is unknown.

    ``container`` is ``"tensor"``, ``"sequence"`` or ``"optional"``; dtype is that of the elements.
    """

    name: str
    dtype: DType | None
    shape: tuple[Dim, ...] | None
    container: str = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """A graph or sub-graph.  ``initializers`` maps names to arrays (may be memory-mapped)."""

    name: str
    inputs: tuple[ValueView, ...]
    outputs: tuple[ValueView, ...]
    nodes: tuple[NodeView, ...]
    initializers: Mapping[str, Array] = field(default_factory=dict)


def as_int_list(value: Any) -> list[int]:
    """An integer attribute list as plain ints."""
    return [int(part) for part in np.asarray(value).reshape(-1)]
