"""Import a ``torch.nn.Module``: the only home of torch in this room.

Input -> Output: a module and example inputs -> a loaded ``onnx_ir.Model``, in memory.
Guarantees: exported in evaluation mode, the module's own mode is restored; no file is written.
Requires: the extra ``torch``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from tilewright.core.errors import BadOption, InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.graph.load import Known, load_model

if TYPE_CHECKING:
    import torch

_ENDLESS = 2**31  # torch writes a dim without an upper end as a very large one
_INSTALL = 'pip install "tilewright[torch]"'


def is_torch_module(source: object) -> bool:
    """Whether an object is a torch module, decided without importing torch."""
    return any(
        base.__module__.partition(".")[0] == "torch" and base.__name__ == "Module"
        for base in type(source).__mro__
    )


def import_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    *,
    known: Known | None = None,
    log: DecisionLog | None = None,
) -> ir.Model:
    """Exports a module with ``torch.onnx.export(dynamo=True)`` and loads the result.

    Args:
        module: the module; its parameters are copied.
        example_inputs: positional arguments, or keyword arguments by name.
        dynamic_shapes: as in ``torch.export.export``; by default all sizes are fixed.
        input_names: names of the graph inputs; by default the names of ``forward``'s parameters.
        known: see ``load_model``.
        log: takes a decision for each change that a caller could notice.

    Raises:
        BadOption: torch is not installed, or the example inputs are no sequence or mapping.
        InvalidModel: torch cannot export the module.
    """
    model = _export(module, example_inputs, dynamic_shapes, input_names)
    if log is not None and any(child.training for child in module.modules()):
        reason = "without dropout, with stored statistics; module.eval() says the same"
        log.add("import", type(module).__name__, "evaluation mode", (("training mode", reason),))
    return load_model(model, known=known, log=log)


def declared_ranges(dynamic_shapes: Any) -> dict[str, tuple[int | None, int | None]]:
    """The range of each named ``torch.export.Dim`` in ``dynamic_shapes`` that states one.

    Args:
        dynamic_shapes: as in ``torch.export.export``: nested mappings and sequences of dims.
    """
    if isinstance(dynamic_shapes, Mapping):
        parts: Iterable[Any] = dynamic_shapes.values()
    elif isinstance(dynamic_shapes, list | tuple):
        parts = dynamic_shapes
    else:
        return _range_of(dynamic_shapes)
    ranges: dict[str, tuple[int | None, int | None]] = {}
    for part in parts:
        ranges.update(declared_ranges(part))
    return ranges


def _range_of(dim: Any) -> dict[str, tuple[int | None, int | None]]:
    """The range of one dim; of the dim below where it is derived, as ``2 * batch`` is."""
    dim = getattr(dim, "root", dim)
    name, low, high = (getattr(dim, part, None) for part in ("__name__", "min", "max"))
    low = low if isinstance(low, int) and low > 0 else None
    high = high if isinstance(high, int) and high < _ENDLESS else None
    return {} if not isinstance(name, str) or (low is high is None) else {name: (low, high)}


def _export(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    dynamic_shapes: Any,
    input_names: Sequence[str] | None,
) -> ir.Model:
    try:
        import onnxscript  # noqa: F401  (torch.onnx needs it and reports its absence late)
        import torch
    except ImportError as error:
        raise BadOption(
            f"importing a torch module needs {error.name}, which is not installed", remedy=_INSTALL
        ) from error
    if isinstance(example_inputs, torch.Tensor) or not isinstance(
        example_inputs, Sequence | Mapping
    ):
        raise BadOption(
            f"example_inputs must be a tuple or a dict, got {type(example_inputs).__name__}",
            remedy="pass example_inputs=(x,) for a module with one input",
        )
    named = isinstance(example_inputs, Mapping)
    name = type(module).__name__
    with _evaluation_mode(module), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module,
                () if named else tuple(example_inputs),
                kwargs=dict(example_inputs) if named else None,
                dynamic_shapes=dynamic_shapes,
                input_names=list(input_names) if input_names is not None else None,
                dynamo=True,
                verbose=False,
            )
        except (torch.onnx.OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
            raise InvalidModel(
                f"torch cannot export it: {_reason(error)}",
                file=f"<{name}>",
                remedy="make torch.export.export(module, example_inputs) work first",
            ) from error
    if program is None:
        raise InvalidModel("torch exported nothing", file=f"<{name}>", remedy="update torch")
    model: ir.Model = program.model
    return model


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at the bottom; the outer messages only point to it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


@contextmanager
def _evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for child, training in modes.items():
            child.training = training
