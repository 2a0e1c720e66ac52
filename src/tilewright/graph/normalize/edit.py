"""What a rewrite may do to a node: take attributes, set inputs, put nodes before it, replace it.

Input -> Output: one node of a model -> the edited model.
Guarantees: new nodes are in the newest form and have unique names; a replacement keeps the names of
the values that it replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilewright.core.errors import UnsupportedOp
from tilewright.core.record import DecisionLog
from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.element_types import element_type_of
from tilewright.graph.walk import Names, node_label


@dataclass(slots=True, kw_only=True)
class Edit:
    """A node being rewritten, and the tools for it."""

    model: ir.Model
    graph: ir.Graph
    node: ir.Node
    names: Names
    log: DecisionLog
    file: str | None

    # --- attributes and inputs --------------------------------------------------------------------

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and returns its value."""
        attribute = self.node.attributes.pop(name, None)
        return default if attribute is None else attribute.value

    def put(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def input(self, index: int) -> ir.Value | None:
        """An input, None when it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def data(self) -> ir.Value:
        """The first input.

        Raises:
            UnsupportedOp: it is absent.
        """
        value = self.input(0)
        if value is None:
            raise self.unsupported("its first input is absent")
        return value

    def set_input(self, index: int, value: ir.Value | None) -> None:
        """Sets an input, adding absent ones before it."""
        if index >= len(self.node.inputs):
            self.node.resize_inputs(index + 1)
        self.node.replace_input_with(index, value)

    def constant_input(self, index: int) -> npt.NDArray[Any] | None:
        """The elements of an input that is an initialiser, else None."""
        value = self.input(index)
        if value is None or not value.is_initializer() or value.const_value is None:
            return None
        array: npt.NDArray[Any] = value.const_value.numpy()
        return array

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of a graph input or an initialiser; others are not trusted."""
        if value is None or value.shape is None:
            return None
        return len(value.shape) if value.is_graph_input() or value.is_initializer() else None

    # --- new values -------------------------------------------------------------------------------

    def constant(self, array: npt.ArrayLike, hint: str, dtype: Any = None) -> ir.Value:
        """A new initialiser of the outermost graph."""
        value = np.asarray(array, dtype=dtype)
        name = self.names.claim(f"{self.node.name}/{hint}")
        result = ir.Value(
            name=name,
            const_value=ir.Tensor(value, name=name),
            type=ir.TensorType(ir.DataType.from_numpy(value.dtype)),
            shape=ir.Shape(value.shape),
        )
        self.model.graph.register_initializer(result)
        return result

    def integers(self, values: Sequence[int] | int, hint: str) -> ir.Value:
        """A new int64 initialiser."""
        return self.constant(values, hint, np.int64)

    def number_like(self, value: float, like: ir.Value, hint: str) -> ir.Value:
        """A new scalar of the element type of another value."""
        dtype = element_type_of(like)
        if dtype is not None:
            return self.constant(value, hint, dtype.numpy)
        return self.emit("CastLike", [self.constant(value, hint, np.float32), like])

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        num_outputs: int = 1,
        **attributes: Any,
    ) -> ir.Value:
        """Puts a node before the edited one; returns its first output."""
        name = self.names.claim(f"{self.node.name}/{op_type}")
        new = ir.Node(
            "",
            op_type,
            inputs,
            ir.convenience.convert_attributes(attributes),
            num_outputs=num_outputs,
            version=NEWEST_OPSET,
            name=name,
        )
        for index, value in enumerate(new.outputs):
            value.name = self.names.claim(f"{name}.out{index}" if index else f"{name}.out")
        self.graph.insert_before(self.node, new)
        return new.outputs[0]

    # --- ends -------------------------------------------------------------------------------------

    def replace(self, *values: ir.Value) -> None:
        """Lets the users of the node's outputs read other values, under the old names."""
        for old, new in zip(self.node.outputs, values, strict=False):
            if not old.name:
                continue
            name, old.name = old.name, f"{old.name}#replaced"
            new.name = name
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)

    def note(self, chosen: str) -> None:
        """Records a decision about the node."""
        self.log.add("normalize", node_label(self.node), chosen)

    def unsupported(self, message: str, remedy: str | None = None) -> UnsupportedOp:
        """The error for an old form that has no equivalent."""
        return UnsupportedOp(
            f"{self.node.op_type} (opset {self.node.version}): {message}",
            operators=(f"ai.onnx.{self.node.op_type}",),
            file=self.file,
            node=node_label(self.node),
            remedy=remedy or "export the model again with opset_version=17 or newer",
        )
