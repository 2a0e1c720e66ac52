"""Compare a model before and after a pass, and find the smallest part that differs.

Input -> Output: two models and feeds -> nothing, or ``VerificationFailed`` that names the pass, the
first value that differs and the nodes around it; optionally both parts as ONNX files with feeds.
Guarantees: the reference computes both in float64, on feeds that depend only on the model.
Requires: a name that both models have denotes the same value (graph.passes.base keeps it so).
Not here: tolerances of finished engines (compiler).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BOOL, STRING
from tilewright.core.errors import UserError, VerificationFailed
from tilewright.core.npz import save_npz
from tilewright.core.whole_file import whole_files
from tilewright.graph.build_view import view
from tilewright.graph.info import TensorInfo
from tilewright.graph.passes.base import Array, Refused
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.save import extract, save_model
from tilewright.graph.shapes import infer
from tilewright.graph.view import GraphView, ValueView

# Relative to the largest magnitude of the value. Folded constants are rounded to the model's types,
# so the narrowest float type in the model counts.
TOLERANCE = 1e-5
_NARROW = {"float16": 4e-3, "bfloat16": 3e-2}
_SIZES = (3, 5, 2, 7, 4)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Compares models; ``feeds`` by default are random; ``folder`` takes reproducers."""

    feeds: dict[str, Any] | None = None
    folder: Path | None = None

    def check(self, before: ir.Model, after: ir.Model, stage: str) -> Refused | None:
        """Compares outputs.

        Returns:
            Why no comparison was possible, else None.

        Raises:
            VerificationFailed: values differ.
        """
        old, new = view(before), view(after)
        feeds = self.feeds if self.feeds is not None else random_feeds(old)
        if feeds is None:
            return Refused(reason="no random feeds for these inputs")
        try:
            expected = evaluate_graph(old, feeds, wide=True)
        except UserError as error:
            return Refused(reason=f"the model fails on these feeds: {error.message}")
        found = evaluate_graph(new, feeds, wide=True)
        allowed = _tolerance(before)
        wrong = [name for name in expected if not same(expected[name], found[name], allowed)]
        if wrong:
            self._blame(before, after, feeds, stage, wrong[0])
        return None

    def _blame(
        self, before: ir.Model, after: ir.Model, feeds: Mapping[str, Any], stage: str, output: str
    ) -> None:
        old, new, allowed = view(before), view(after), _tolerance(before)
        kept = set(_names(old))
        common = [name for name in _names(new) if name in kept]
        expected = evaluate_graph(old, feeds, wide=True, keep=common)
        found = evaluate_graph(new, feeds, wide=True, keep=common)
        first = next(
            (name for name in common if not same(expected[name], found[name], allowed)), output
        )
        nodes, starts = _part(before, first, set(common))
        where = ""
        if self.folder is not None:
            where = self._write(before, after, stage, first, starts, expected)
        raise VerificationFailed(
            f"the pass {stage} changed the value {first!r}: "
            f"{difference(expected[first], found[first])}; "
            f"the smallest part that differs: {', '.join(nodes)}{where}",
            remedy="report this as a fault of the pass"
            + ("" if self.folder else "; --reproducer (reproducer=) writes the part that differs"),
        )

    def _write(
        self,
        before: ir.Model,
        after: ir.Model,
        stage: str,
        value: str,
        starts: list[str],
        values: Mapping[str, Any],
    ) -> str:
        """Writes the part before and after the pass, and the values that enter it."""
        if self.folder is None:
            return ""
        arrays = {name: values[name] for name in starts if isinstance(values[name], np.ndarray)}
        with whole_files(self.folder) as folder:
            for name, model in (("before", before), ("after", after)):
                infos = _infos(model)
                part = extract(model, starts, [value], infos=infos)
                save_model(part, folder / f"{stage}_{name}.onnx", infos=infos)
            save_npz(folder / f"{stage}_feeds.npz", arrays)
        return f"; written to {self.folder}"


def _tolerance(model: ir.Model) -> float:
    """What the narrowest float type among the model's values allows."""
    names = {info.dtype.name for info in _infos(model).values()}
    return max([TOLERANCE, *(allowed for name, allowed in _NARROW.items() if name in names)])


def _infos(model: ir.Model) -> Mapping[str, TensorInfo]:
    try:
        return infer(view(model)).tensors
    except UserError:
        return {}


def _names(graph: GraphView) -> list[str]:
    """Inputs and results of the outermost graph, in order."""
    names = [value.name for value in graph.inputs]
    return names + [name for node in graph.nodes for name in node.outputs if name]


def _part(model: ir.Model, value: str, common: set[str]) -> tuple[list[str], list[str]]:
    """The nodes between a value and the nearest values that both models have; those values."""
    makers = {out.name: node for node in model.graph for out in node.outputs if out.name}
    nodes: dict[str, None] = {}
    starts: dict[str, None] = {}
    waiting, seen = [value], set[str]()
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name in seen:
            continue
        seen.add(name)
        if name != value and name in common:
            starts[name] = None
        elif node is not None:
            nodes[f"{node.name} ({node.op_type})"] = None
            waiting += [read.name for read in node.inputs if read is not None and read.name]
    return list(nodes), list(starts)


# --- values ---------------------------------------------------------------------------------------


def same(expected: Any, found: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two values agree: type, shape, NaN and Inf at the same places, numbers nearly."""
    if isinstance(expected, list) or isinstance(found, list):
        return (
            isinstance(expected, list)
            and isinstance(found, list)
            and len(expected) == len(found)
            and all(same(a, b, tolerance) for a, b in zip(expected, found, strict=True))
        )
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return type(expected) is type(found) and bool(expected == found)
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if expected.dtype.kind in "iubOSU":
        return bool((expected == found).all())
    return _error(expected, found) <= tolerance


def _error(expected: Array, found: Array) -> float:
    """The largest difference relative to the largest magnitude; Inf where NaN or Inf differ."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        one, two = expected.astype(wide), found.astype(wide)
        finite = np.isfinite(one)
        if not np.array_equal(one[~finite], two[~finite], equal_nan=True):
            return float("inf")
        gap = np.abs(one[finite] - two[finite])
        if not gap.size:
            return 0.0
        largest = float(np.abs(one[finite]).max())
        return float(np.nan_to_num(gap, nan=np.inf).max()) / (largest or 1.0)


def difference(expected: Any, found: Any) -> str:
    """Says how two values differ."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return "the containers differ"
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"{expected.dtype}{list(expected.shape)} became {found.dtype}{list(found.shape)}"
    if expected.dtype.kind in "iubOSU":
        return f"{int((expected != found).sum())} of {expected.size} elements differ"
    return f"relative error {_error(expected, found):.1e}"


# --- feeds ----------------------------------------------------------------------------------------


def random_feeds(graph: GraphView, seed: int = 0) -> dict[str, Any] | None:
    """Values for a graph's inputs: the same for the same declarations, also after other passes."""
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        for dim in value.shape or ():
            for name in sorted(dim.symbols):
                sizes.setdefault(name, _SIZES[len(sizes) % len(_SIZES)])
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        array = _random(value, sizes, seed)
        if array is None:
            return None
        feeds[value.name] = array
    return feeds


def _random(value: ValueView, sizes: Mapping[str, int], seed: int) -> Array | None:
    if value.dtype is None or value.shape is None or value.container != "tensor":
        return None
    rng = np.random.default_rng((seed, zlib.crc32(value.name.encode())))
    shape = [max(dim.evaluate(sizes), 0) for dim in value.shape]
    if value.dtype is STRING:
        return np.array([f"text {k}" for k in range(int(np.prod(shape)))], object).reshape(shape)
    if value.dtype is BOOL or value.dtype.is_integer:
        return rng.integers(0, 2, shape).astype(value.dtype.numpy)
    return rng.standard_normal(shape).astype(value.dtype.numpy)
