"""Random models: 1 to 12 nodes of all operator families, with feeds for several runs of one engine.

Input -> Output: a seed -> ``Sample`` (model, feeds and expected results of each run).
Guarantees: the same seed gives the same sample; the reference accepts every run.
Not here: comparing with an engine (check).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from property import families, families_control, families_heavy, families_tensor
from property.draft import Draft, Rejected, Value

Array = npt.NDArray[Any]
NUM_RUNS = 3
OPSETS = (13, 17, 18, 20, 21, 21, 22, 23, 23, 24, 26, 28)
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
_LARGE_SIZES = (1, 7, 31, 64, 65, 128, 200, 333)
_FAMILIES = (
    *families.FAMILIES,
    *families_tensor.FAMILIES,
    *families_heavy.FAMILIES,
    *families_control.FAMILIES,
)
_MAKERS = [maker for maker, _ in _FAMILIES]
_WEIGHTS = [weight for _, weight in _FAMILIES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A model and what it computes.

    Attributes:
        feeds: inputs of each run.
        outputs: the values that are graph outputs.
        values: all values, by name.
        special: feeds hold NaN and infinities.
    """

    seed: int
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Array], ...]
    outputs: tuple[Value, ...]
    values: Mapping[str, Value]
    special: bool

    @property
    def text(self) -> str:
        """The reproducer: seed, inputs with their shapes, nodes."""
        lines = [f"seed {self.seed} (opset {self.model.opset_import[0].version})"]
        for value in self.model.graph.input:
            dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            shapes = [list(feed[value.name].shape) for feed in self.feeds]
            lines.append(f"  input {value.name}: {dims} in the runs {shapes}")
        weights = self.model.graph.initializer
        lines += [f"  initialiser {tensor.name}: {list(tensor.dims)}" for tensor in weights]
        for node in self.model.graph.node:
            attributes = ", ".join(
                f"{a.name}={helper.get_attribute_value(a)!r:.80}"
                for a in node.attribute
                if not a.HasField("g")
            )
            lines.append(f"  {list(node.output)} = {node.op_type}({list(node.input)}) {attributes}")
        lines.append(f"  outputs {[value.name for value in self.model.graph.output]}")
        return "\n".join(lines)


def generate(seed: int, *, large: bool = False) -> Sample:
    """The model of a seed; ``large`` ones have work for several threads."""
    rng = random.Random(seed)
    draft = Draft(
        rng=rng,
        opset=rng.choice(OPSETS),
        symbols=_symbols(rng, _LARGE_SIZES if large else _SIZES),
        special=rng.random() < 0.08,
        large=large,
    )
    wanted = rng.choice((1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12))
    focus = rng.random() < 0.3  # few families in one model meet more often
    makers = rng.sample(_MAKERS, 6) if focus else _MAKERS
    weights = [_WEIGHTS[_MAKERS.index(maker)] for maker in makers]
    for _ in range(60):
        if len(draft.nodes) >= wanted:
            break
        maker = rng.choices(makers, weights)[0]
        try:
            with draft.attempt():
                maker(draft)
        except Rejected:
            continue
    if not any(node.op_type != "Constant" for node in draft.nodes):
        with draft.attempt():
            draft.emit("Identity", [draft.fresh(families.FLOATS[0], [draft.symbols[0]])])
    return finish(seed, draft)


def _symbols(rng: random.Random, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    def size() -> int:
        return 0 if rng.random() < 0.03 else rng.choice(sizes)

    return [tuple(size() for _ in range(NUM_RUNS)) for _ in range(rng.randint(1, 3))]


def finish(seed: int, draft: Draft) -> Sample:
    """Chooses outputs and declares inputs."""
    outputs = _choose_outputs(draft)
    used = {name for node in draft.nodes for name in _reads(node)} | {v.name for v in outputs}
    inputs = [v for v in draft.inputs.values() if v.name in used or draft.chance(0.3)]
    names: dict[tuple[int, ...], str] = {}
    graph = helper.make_graph(
        draft.nodes,
        "random",
        [_declare(draft, value, names) for value in inputs],
        [_declare_output(draft, value) for value in outputs],
        [
            numpy_helper.from_array(value.narrow[0], value.name)
            for value in draft.initializers.values()
            if value.name in used or draft.chance(0.1)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)])
    model.ir_version = 10
    feeds = tuple(
        {value.name: value.narrow[run].copy() for value in inputs} for run in range(draft.num_runs)
    )
    return Sample(
        seed=seed,
        model=model,
        feeds=feeds,
        outputs=tuple(outputs),
        values={value.name: value for value in draft.values},
        special=draft.special,
    )


def _reads(node: onnx.NodeProto) -> list[str]:
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names += _reads(inner)
    return names


def _choose_outputs(draft: Draft) -> list[Value]:
    """All ends, and sometimes a value in the middle, an input or a constant."""
    read = {name for node in draft.nodes for name in _reads(node)}
    made = {name for node in draft.nodes if node.op_type != "Constant" for name in node.output}
    ends = [v for v in draft.values if v.name in made and v.name not in read]
    middle = [v for v in draft.values if v.name in made and v.name in read and draft.chance(0.15)]
    rest = [v for v in draft.values if v.name not in made and draft.chance(0.02)]
    chosen = [*ends, *middle, *rest]
    draft.rng.shuffle(chosen)
    return chosen


def _declare(draft: Draft, value: Value, names: dict[tuple[int, ...], str]) -> onnx.ValueInfoProto:
    dims: list[Any] = []
    for dim in value.dims:
        fixed = len(set(dim)) == 1
        if fixed and draft.chance(0.85):
            dims.append(dim[0])
        elif draft.chance(0.1):
            dims.append(None)
        elif draft.chance(0.85):
            dims.append(names.setdefault(dim, f"n{len(names)}"))
        else:
            dims.append(draft.name("u"))
    return helper.make_tensor_value_info(value.name, value.dtype.code, dims)


def _declare_output(draft: Draft, value: Value) -> onnx.ValueInfoProto:
    if draft.chance(0.6):
        return helper.make_tensor_value_info(value.name, value.dtype.code, None)
    dims = [dim[0] if len(set(dim)) == 1 and draft.chance(0.7) else None for dim in value.dims]
    return helper.make_tensor_value_info(value.name, value.dtype.code, dims)
