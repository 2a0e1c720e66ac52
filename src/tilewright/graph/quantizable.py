"""A model that is to be quantised: what the quantiser may ask of it and do to it.

Input -> Output: a model -> constants folded into weights; then copies with more outputs, with
other weights, with run-time quantisers, or with QuantizeLinear and DequantizeLinear.
Guarantees: value and node names keep their meaning in every copy; standard operators only.
Not here: where to quantise and with which scales (compress); the node patterns (insert_qdq).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.graph.info import TensorInfo
from tilewright.graph.insert_qdq import (
    Recipe,
    insert_dynamic,
    insert_qdq,
    insert_simulation,
    set_input,
)
from tilewright.graph.load import view
from tilewright.graph.lower_opset import lower_opset
from tilewright.graph.passes.base import Array, Pass, PassContext, operand
from tilewright.graph.passes.cancel_casts import cancel_casts
from tilewright.graph.passes.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tilewright.graph.passes.eliminate_dead_nodes import eliminate_dead_nodes
from tilewright.graph.passes.eliminate_identities import eliminate_identities
from tilewright.graph.passes.fold_batch_normalization import fold_batch_normalization
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fold_pads import fold_pads
from tilewright.graph.passes.fold_scale import fold_scale
from tilewright.graph.passes.inline_branches import inline_branches
from tilewright.graph.passes.simplify_reshapes import simplify_reshapes
from tilewright.graph.passes.standard import run_passes
from tilewright.graph.save import to_proto
from tilewright.graph.shapes.infer import infer
from tilewright.graph.view import GraphView

# Weights must be final before they are quantised; larger operators are left to `compile`.
PREPARE: tuple[Pass, ...] = (
    eliminate_dead_nodes,
    fold_constants,
    inline_branches,
    fold_constants,
    eliminate_identities,
    eliminate_common_subexpressions,
    cancel_casts,
    simplify_reshapes,
    fold_pads,
    fold_batch_normalization,
    fold_scale,
    fold_constants,
    eliminate_identities,
    eliminate_dead_nodes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """A value to multiply before some products read it.

    Attributes:
        value: its name.
        factors: [channels], along its last dim.
        weights: new weights of each product that reads it, by node.
    """

    value: str
    factors: Array
    weights: Mapping[str, Array]


class Quantizable:
    """A model with final weights.

    Attributes:
        name: the file, for messages.
    """

    def __init__(self, model: ir.Model, name: str) -> None:
        self._model = model
        self.name = name

    @staticmethod
    def load(
        source: Any, log: DecisionLog, known: Callable[[str, str], bool] | None = None
    ) -> Quantizable:
        """Imports a model and folds what belongs into weights.

        Raises:
            InvalidModel, UnsupportedOp: see ``graph.load.load_model``.
        """
        model = Model.load(source, log, known=known)
        edited = model.editable()
        run_passes(edited, log, passes=PREPARE)
        return Quantizable(edited, model.name)

    def view(self) -> GraphView:
        """The graph as plain data."""
        return view(self._model)

    def infos(self) -> Mapping[str, TensorInfo]:
        """Types and shapes of all values."""
        return infer(self.view()).tensors

    # --- copies that `compile` takes --------------------------------------------------------------

    def model(self) -> Any:
        """The model itself, for ``tilewright.compile``."""
        return self._model

    def observed(self, names: Sequence[str]) -> Any:
        """A copy whose outputs are the named values."""
        copy = self._model.clone()
        values = _values(copy)
        copy.graph.outputs.clear()
        copy.graph.outputs.extend(values[name] for name in names)
        return copy

    def with_weights(self, arrays: Mapping[tuple[str, int], Array]) -> Quantizable:
        """A copy in which some nodes have other weights.

        Args:
            arrays: by node and position of the input (2, the bias, may be one that was absent).
        """
        copy = self._model.clone()
        ctx = PassContext(model=copy, stage="quantize")
        nodes = {node.name: node for node in copy.graph}
        for (name, index), array in arrays.items():
            node = nodes[name]
            old = operand(node, index)
            hint = (old.name if old is not None else None) or f"{name}/{index}"
            set_input(node, index, ctx.new_constant(array, hint))
        eliminate_dead_nodes.run(ctx)
        return Quantizable(copy, self.name)

    def smoothed(self, values: Sequence[Smoothed]) -> Quantizable:
        """A copy in which products read multiplied values."""
        weights = {(node, 1): array for one in values for node, array in one.weights.items()}
        copy = self.with_weights(weights)._model
        ctx = PassContext(model=copy, stage="smooth")
        nodes, known = {node.name: node for node in copy.graph}, _values(copy)
        for one in values:
            readers = [nodes[name] for name in one.weights]
            factors = ctx.new_constant(one.factors, f"{one.value}_smoothing")
            product = ctx.new_node("Mul", [known[one.value], factors], before=readers[0])
            for reader in readers:
                reader.replace_input_with(0, product.outputs[0])
        return Quantizable(copy, self.name)

    def simulated(self, recipe: Recipe) -> Any:
        """A copy that takes weights and the parameters of every quantiser as inputs."""
        copy = self._model.clone()
        insert_simulation(PassContext(model=copy, stage="simulate"), recipe)
        return copy

    def quantized(self, recipe: Recipe, log: DecisionLog) -> ir.Model:
        """A copy with QuantizeLinear and DequantizeLinear, in the oldest opset that has it all."""
        copy = self._model.clone()
        ctx = PassContext(model=copy, stage="quantize", log=log)
        insert_dynamic(ctx, recipe) if recipe.dynamic else insert_qdq(ctx, recipe)
        eliminate_dead_nodes.run(PassContext(model=copy, stage="quantize"))
        lower_opset(copy)
        return copy


def serialized(model: ir.Model, infos: Mapping[str, TensorInfo]) -> bytes:
    """The bytes of a model as an ONNX file; ``infos`` declare outputs that have no shape."""
    written: bytes = to_proto(model, infos=infos).SerializeToString()
    return written


def _values(model: ir.Model) -> dict[str, ir.Value]:
    found = {value.name or "": value for value in model.graph.inputs}
    for node in model.graph:
        found.update({value.name or "": value for value in node.outputs})
    return found
