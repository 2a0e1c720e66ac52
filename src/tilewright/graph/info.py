"""What is known of tensors and nodes before anything runs: types, symbolic shapes, contents.

Input -> Output: ``graph.shapes.infer`` fills these; lowering and passes read them.
Guarantees: a name in a shape is a graph input's dim, or a symbol that a ``Binding`` sets at run
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tilewright.core.dtypes import DType
from tilewright.core.shape import Dim
from tilewright.runtime.program import DimsArg, LiteralArg, TensorArg

__all__ = ["Binding", "DimsArg", "LiteralArg", "NodeInfo", "TensorArg", "TensorInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor.

    Attributes:
        dtype: its element type.
        shape: its dims.
        content: its elements where they are known: an ordinary array for constants, an object array
            of ``Dim`` for integer tensors computed from shapes; None otherwise.
        container: ``tensor``, ``sequence`` or ``optional`` (then dtype/shape describe the elements,
            and shape is None when they differ or are unknown).
    """

    dtype: DType
    shape: tuple[Dim, ...] | None
    content: npt.NDArray[Any] | None = None
    container: str = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Sets symbols at run time from data: ``symbols = runtime.bindings[function](*args)``.

    The function returns one integer for each symbol, or raises ``ShapeMismatch``/``OutOfRange``.
    """

    function: str
    args: tuple[TensorArg | DimsArg | LiteralArg, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a shape rule found out about one node.

    Attributes:
        outputs: one entry for each output position (None where the output is absent).
        params: named integer parameters in normal form, static or symbolic (``starts`` of a Slice).
        bindings: symbols that must be set before the node runs.
    """

    outputs: tuple[TensorInfo | None, ...]
    params: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    bindings: tuple[Binding, ...] = ()
