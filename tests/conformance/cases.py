"""ONNX's own test cases, run through the compiler.

Input -> Output: a set's name -> cases; a case -> ``Result`` (passed, refused or wrong; what was
interpreted).
Guarantees: a case passes only if all of its data sets give the expected type, shape and values
within the case's own tolerances; a refusal counts only if it is a ``UserError``.
Not here: the numbers that must be reached (test_onnx_cases).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tilewright as tw
from tilewright.core.errors import UnsupportedOp, UserError
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one case.

    Attributes:
        status: ``passed``; ``refused`` (a ``UserError``); ``random`` (ONNX fixes type, shape and
            distribution, not the values); ``closer`` (the values differ from the case's, which
            were computed in a narrow type, and are nearer to float64 than they are); ``wrong``.
    """

    name: str
    status: str
    interpreted: tuple[str, ...] = ()
    detail: str = ""

    @property
    def compiled(self) -> bool:
        """True when it passed and nothing was interpreted."""
        return self.status == "passed" and not self.interpreted


@cache
def node_cases() -> list[Any]:
    """The node cases of the installed onnx, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(collect_testcases(None), key=lambda case: case.name)


@cache
def stored_cases(kind: str) -> list[Any]:
    """The cases that onnx ships as files: ``simple``, ``pytorch-converted``,
    ``pytorch-operator``.
    """
    from onnx.backend.test.loader import load_model_tests

    return sorted(load_model_tests(kind=kind), key=lambda case: case.name)


def cases(kind: str) -> list[Any]:
    """All cases of a set."""
    return node_cases() if kind == "node" else stored_cases(kind)


def run_case(case: Any, target: str = "cpu") -> Result:
    """Compiles one case and runs all of its data sets."""
    try:
        model = case.model if case.model is not None else Path(case.model_dir) / "model.onnx"
        engine = tw.compile(model, verify=False, threads=1, target=target)
    except UnsupportedOp as error:
        return Result(name=case.name, status="refused", detail=f"{error}")
    except UserError as error:
        return Result(name=case.name, status="refused", detail=f"{type(error).__name__}: {error}")
    interpreted = tuple(op for _, op, _ in engine.summary["interpreted"])
    for inputs, expected in _data_sets(case):
        feeds = dict(zip([spec.name for spec in engine.inputs], inputs, strict=False))
        try:
            outputs = list(engine.run(feeds).values())
        except UserError as error:
            detail = f"{type(error).__name__}: {error}"
            return Result(name=case.name, status="refused", interpreted=interpreted, detail=detail)
        for position, (got, want) in enumerate(zip(outputs, expected, strict=True)):
            problem = difference(got, want, case.rtol, case.atol)
            if problem:
                status = _verdict(case, model, feeds, position, got, want, interpreted)
                return Result(
                    name=case.name, status=status, interpreted=interpreted, detail=problem
                )
    # Drawn values agree now and then; counting that as passed would make the counts vary.
    status = "random" if _RANDOM & set(interpreted) else "passed"
    return Result(name=case.name, status=status, interpreted=interpreted)


_RANDOM = frozenset(("Bernoulli", "RandomUniformLike", "RandomNormalLike", "Multinomial"))


def _verdict(
    case: Any,
    model: Any,
    feeds: dict[str, Any],
    position: int,
    got: Any,
    want: Any,
    ops: tuple[str, ...],
) -> str:
    """Why values differ: chance, a less exact expectation, or a fault."""
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape or a.dtype != b.dtype:
        return "wrong"
    if _RANDOM & set(ops):
        return "random"
    if a.dtype.kind not in "fV":
        return "wrong"
    graph = Model.load(model, DecisionLog()).original
    exact = np.asarray(list(reference(graph, feeds, wide=True).values())[position])
    x, y = a.astype(np.float64), b.astype(np.float64)
    differ = ~np.isclose(x, y, rtol=case.rtol, atol=case.atol, equal_nan=True)
    ours, theirs = np.abs(x - exact)[differ], np.abs(y - exact)[differ]
    return "closer" if bool((ours <= theirs).all()) else "wrong"


def run_part(job: tuple[str, int, int, str, str]) -> list[Result]:
    """Every n-th case of a set for a target, with a folder for compiled kernels."""
    kind, part, parts, folder, target = job
    os.environ["TILEWRIGHT_CACHE"] = folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run_case(case, target) for case in cases(kind)[part::parts]]


def _data_sets(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_value(part) for part in inputs], [_value(part) for part in outputs]
        return
    model = onnx.load(str(Path(case.model_dir) / "model.onnx"))
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield (
            _read_all(folder, "input", model.graph.input),
            _read_all(folder, "output", model.graph.output),
        )


def _read_all(folder: Path, prefix: str, values: Any) -> list[Any]:
    count = len(list(folder.glob(f"{prefix}_*.pb")))
    result: list[Any] = []
    for number in range(count):
        data = (folder / f"{prefix}_{number}.pb").read_bytes()
        kind = values[number].type.WhichOneof("value")
        if kind == "sequence_type":
            result.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif kind == "optional_type":
            result.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            result.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return result


def _value(part: Any) -> Any:
    if isinstance(part, onnx.TensorProto):
        return numpy_helper.to_array(part)
    if isinstance(part, onnx.SequenceProto):
        return numpy_helper.to_list(part)
    if isinstance(part, onnx.OptionalProto):
        return numpy_helper.to_optional(part)
    return part


def difference(got: Any, want: Any, rtol: float, atol: float) -> str:
    """What differs, or nothing."""
    if want is None or got is None:
        return "" if got is None and want is None else f"got {type(got)}, expected {type(want)}"
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return "sequences of different lengths"
        return next(
            (d for a, b in zip(got, want, strict=True) if (d := difference(a, b, rtol, atol))), ""
        )
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return f"shape {a.shape}, expected {b.shape}"
    if b.dtype.kind in "OUST":
        same = bool(np.array_equal(a.astype(str), b.astype(str)))
        return "" if same else f"strings {a!r}, expected {b!r}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype}, expected {b.dtype}"
    if a.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # as onnx's own runner: two units in the last place
    if a.dtype.kind == "V" or a.dtype.kind == "f":
        a, b = a.astype(np.float64), b.astype(np.float64)
    close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if bool(close.all()):
        return ""
    with np.errstate(invalid="ignore"):
        worst = np.abs(a.astype(np.complex128) - b.astype(np.complex128)).max()
    return f"{int((~close).sum())} of {close.size} values differ, by up to {worst:.3e}"
