"""A model being compiled: what the compiler may ask of it, without naming onnx types.

Input -> Output: whatever a caller calls a model -> ``Model``, with its stages as methods.
Guarantees: the caller's object is not changed.
Not here: the stages themselves (load, normalize, passes, shapes, reference, save).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tilewright.core.errors import BadOption, UnsupportedOp, UserError, VerificationFailed
from tilewright.core.record import DecisionLog
from tilewright.graph.check_nodes import known_to_onnx
from tilewright.graph.fix_sizes import fix_sizes
from tilewright.graph.functions import expand_functions
from tilewright.graph.info import TensorInfo
from tilewright.graph.lineage import Lineage, Origin
from tilewright.graph.load import load_model, read_model, source_name, view
from tilewright.graph.normalize import is_rewritten, normalize
from tilewright.graph.passes.standard import (
    INTEGER_ONLY,
    STANDARD,
    WITH_FLOAT_WEIGHTS,
    run_passes,
)
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.save import extract, save_model
from tilewright.graph.shapes.declared import note_shapes
from tilewright.graph.shapes.infer import Inference, infer
from tilewright.graph.torch_frontend import declared_ranges, import_torch, is_torch_module
from tilewright.graph.view import GraphView
from tilewright.runtime.reference import supported


class Model:
    """An imported model in normal form.

    Attributes:
        name: the file, for messages.
        original: the graph before any pass (what the engine is verified against).
        lineage: the nodes as they were read.
        declared: ranges of dims that ``torch.export.Dim`` objects stated.
    """

    def __init__(
        self,
        model: ir.Model,
        name: str,
        lineage: Lineage,
        declared: Mapping[str, tuple[int | None, int | None]] | None = None,
    ) -> None:
        self.declared = dict(declared or {})
        self._model = model
        self.lineage = lineage
        self._imported = model.clone()
        self.name = name
        self.original = view(model)

    @staticmethod
    def load(
        source: Any,
        log: DecisionLog,
        *,
        example_inputs: Any = None,
        dynamic_shapes: Any = None,
        known: Callable[[str, str], bool] | None = None,
    ) -> Model:
        """Imports and normalises a model.

        Raises:
            InvalidModel, UnsupportedOp: see ``graph.load.load_model``.
            BadOption: options of torch modules for another model.
        """

        def acceptable(domain: str, op_type: str, opset: int) -> bool:
            return (
                known_to_onnx(domain, op_type, opset)
                or is_rewritten(domain, op_type)
                or (known is not None and known(domain, op_type))
            )

        declared = declared_ranges(dynamic_shapes)
        if not is_torch_module(source):
            _refuse_torch_options(source, example_inputs, dynamic_shapes)
        name = "torch module" if is_torch_module(source) else source_name(source) or "model"
        with _file_named(name):
            if is_torch_module(source):
                model = import_torch(
                    source, example_inputs, dynamic_shapes=dynamic_shapes, known=acceptable, log=log
                )
            else:
                model = load_model(source, known=acceptable, log=log)
            lineage = Lineage.of(model)
            normalize(model, log=log, file=name)
            lineage.saw(model, "normalize")
            return Model(model, name, lineage, declared)

    @staticmethod
    def has_reference(domain: str, op_type: str) -> bool:
        """True when NumPy knows the operator."""
        return supported(domain, op_type, 1_000)

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata properties."""
        return {str(key): str(value) for key, value in self._model.metadata_props.items()}

    def view(self) -> GraphView:
        """The graph as it is now."""
        return view(self._model)

    def editable(self) -> ir.Model:
        """The graph itself, for those who edit it in this room."""
        return self._model

    def infer(
        self, minimum: Mapping[str, int] | None = None, log: DecisionLog | None = None
    ) -> Inference:
        """Types, symbolic shapes and contents of all values.

        ``log`` takes a decision for each output whose declared shape does not hold.
        """
        with _file_named(self.name):
            found = infer(self.view(), minimum=minimum)
        if log is not None:
            note_shapes(self.original.outputs, found.tensors, log)
        return found

    def expand_functions(self, wanted: Callable[[str, str], bool], log: DecisionLog) -> None:
        """Replaces operators that are only known by ONNX's function body.

        Raises:
            UnsupportedOp: some have no body either.
        """
        left = expand_functions(self._model, wanted, log=log, file=self.name)
        if left:
            # Some bodies depend on the types of the inputs.
            infos = self.infer().tensors
            left = expand_functions(self._model, wanted, infos=infos, log=log, file=self.name)
        if left:
            raise UnsupportedOp(
                f"neither a kernel nor a function body for {', '.join(left)}",
                operators=tuple(left),
                file=self.name,
                remedy="replace these operators in the model",
            )
        self.lineage.saw(self._model, "expand_functions")

    def run_passes(
        self,
        log: DecisionLog,
        *,
        verify: bool = False,
        feeds: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        small_weights: bool = True,
    ) -> None:
        """Runs the standard passes, each checked; with ``verify`` also by value.

        Args:
            log: takes the decisions.
            verify: whether values are compared.
            feeds: inputs for that; None draws some.
            folder: where the smallest part that a pass changes is written.
            small_weights: products with floats take weights of few bits as they are.

        Raises:
            VerificationFailed: a pass changed a value.
        """
        with _file_named(self.name):
            run_passes(
                self._model,
                log,
                passes=STANDARD if small_weights else WITH_FLOAT_WEIGHTS,
                verify_passes=verify,
                feeds=None if feeds is None else dict(feeds),
                reproducer_folder=folder,
                on_pass=lambda name, _: self.lineage.saw(self._model, name),
            )

    def make_integer_only(self, log: DecisionLog) -> None:
        """Puts integer arithmetic in the place of float functions between integers.

        From here on this is the model's meaning, which engines are verified against.
        """
        with _file_named(self.name):
            run_passes(
                self._model,
                log,
                passes=INTEGER_ONLY,
                on_pass=lambda name, _: self.lineage.saw(self._model, name),
            )
        self._imported = self._model.clone()
        self.original = view(self._model)

    def fix_sizes(self, sizes: Mapping[str, int], log: DecisionLog) -> None:
        """Makes numbers of symbolic dims: whatever else they are fed is refused.

        Args:
            sizes: by name of a dim of the inputs.
            log: takes a decision for each.
        """
        if not sizes:
            return
        fix_sizes(self._model, sizes)
        for name, size in sizes.items():
            log.add("import", name, f"{size}, the only size that is declared for it")
        self._imported = self._model.clone()
        self.original = view(self._model)

    def find_wrong_pass(
        self, feeds: Mapping[str, Any], wanted: Callable[[str, str], bool]
    ) -> str | None:
        """Runs the passes again and compares values after each.

        Args:
            feeds: inputs on which a pass is thought to change a value.
            wanted: which operators are expanded before, as for ``expand_functions``.

        Returns:
            Which pass first changed what, None where no pass did.
        """
        model = self._imported.clone()
        expand_functions(model, wanted, infos=None, file=self.name)
        try:
            run_passes(model, passes=STANDARD, verify_passes=True, feeds=dict(feeds))
        except VerificationFailed as error:
            return error.message
        return None

    def origins(self) -> list[Origin]:
        """What became of each node of the graph as it was read."""
        return self.lineage.origins(self.view())

    def save(self, path: Path) -> None:
        """Writes the graph as it is now as ONNX."""
        save_model(self._model, path)

    def extract(
        self,
        inputs: Collection[str],
        outputs: Collection[str],
        path: Path,
        infos: Mapping[str, TensorInfo] | None = None,
    ) -> None:
        """Writes a part of the graph as it was imported as ONNX.

        Args:
            inputs: names of the values that become inputs.
            outputs: names of the values that become outputs.
            path: the file.
            infos: types and shapes of values, for those of inputs and outputs.

        Raises:
            BadOption: a name is not a value of the outermost graph.
            CacheError: the file cannot be written.
        """
        part = extract(self._imported, list(inputs), list(outputs), infos=infos)
        save_model(part, path, infos=infos)


def _refuse_torch_options(source: Any, example_inputs: Any, dynamic_shapes: Any) -> None:
    for name, given in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
        if given is not None:
            raise BadOption(
                f"{name} is for a torch.nn.Module, the model is {type(source).__name__}",
                file=source_name(source),
                remedy=f"drop {name}; verify_feeds= takes inputs to verify with, dims= the range "
                "of sizes",
            )


@contextmanager
def _file_named(name: str) -> Iterator[None]:
    """Errors of the model say which file it is."""
    try:
        yield
    except UserError as error:
        error.file = error.file or name
        raise


def as_written(source: Any) -> GraphView:
    """A model as its file has it: of its own operator set, no call checked, nothing rewritten.

    Raises:
        InvalidModel: not a model, damaged, contradictory or hostile.
    """
    return view(read_model(source))


def reference(
    graph: GraphView, feeds: Mapping[str, Any], *, wide: bool = True, keep: Any = None
) -> dict[str, Any]:
    """The values of a graph by NumPy, in float64 unless ``wide`` is False."""
    return evaluate_graph(graph, feeds, wide=wide, keep=keep)
