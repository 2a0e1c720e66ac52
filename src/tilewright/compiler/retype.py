"""Values and weights of a segment in a narrower float type.

    y = relu(x) : float32   ->   y = float16(relu(float32(x)))
Input -> Output: the items of a segment, what is to be narrowed -> the items over narrower buffers.
Guarantees: arithmetic and sums stay float32; a value that is loaded and stored unchanged is not
rounded again.
Not here: what is narrowed (compiler.narrow for float16, compiler.bfloat16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.core.dtypes import FLOAT32, DType
from tilewright.kernel.bfloat16 import to_bfloat16
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Cast,
    Expr,
    Kernel,
    Load,
    Stage,
    Store,
    cast,
    load,
    transform,
    walk,
)
from tilewright.lower.context import Item, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What becomes of a segment.

    Attributes:
        dtype: the narrow type.
        values: names of values that are kept in it.
        weights: constants that are read in it -> their names there.
        flushes: what is below the least normal number becomes 0, as instructions of CPUs do.
    """

    dtype: DType
    values: frozenset[str]
    weights: Mapping[str, str]
    flushes: bool = False

    def item(self, item: Item) -> Item:
        """A kernel or view of the narrow buffers."""
        if isinstance(item, View):
            source, target = self._buffers((item.source, item.target))
            return replace(item, source=source, target=target)
        stages = tuple(
            replace(stage, stores=tuple(self._store(store) for store in stage.stores))
            for stage in item.stages
        )
        return replace(
            item,
            stages=stages,
            inputs=self._buffers(item.inputs),
            outputs=self._buffers(item.outputs),
            temporaries=self._buffers(item.temporaries),
        )

    def _buffers(self, buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
        return tuple(
            replace(own, name=self.weights.get(own.name, own.name), dtype=self.dtype)
            if own.name in self.values or own.name in self.weights
            else own
            for own in buffers
        )

    def _store(self, store: Store) -> Store:
        changed = store.mapped(lambda root: transform(root, self._loaded))
        if store.buffer not in self.values:
            return changed
        value = changed.value
        exact = value.arg if isinstance(value, Cast) and value.arg.dtype is self.dtype else None
        return replace(changed, value=exact if exact is not None else self._rounded(value))

    def _rounded(self, value: Expr) -> Expr:
        return to_bfloat16(value) if self.flushes else cast(value, self.dtype)

    def _loaded(self, node: Expr) -> Expr | None:
        if isinstance(node, Load) and (node.buffer in self.values or node.buffer in self.weights):
            name = self.weights.get(node.buffer, node.buffer)
            return cast(load(name, self.dtype, node.index), FLOAT32)
        return None


def pins(kernel: Kernel) -> bool:
    """Whether a kernel's values must keep their types: steps, and bits read as another type."""
    nodes = walk(*kernel.roots)
    return kernel.steps is not None or any(isinstance(n, Cast) and n.bits for n in nodes)


def narrowable(items: Iterable[Item], keep: Iterable[str]) -> Iterator[frozenset[str]]:
    """Float32 values that nobody else needs as they are; views of one memory come together."""
    memory: dict[str, str] = {}

    def root(name: str) -> str:
        while name in memory:
            name = memory[name]
        return name

    kinds: dict[str, Buffer] = {}
    made: set[str] = set()
    kept = set(keep)
    for item in items:
        if isinstance(item, View):
            memory[item.target.name] = item.source.name
            kinds.update({b.name: b for b in (item.source, item.target)})
            continue
        kinds.update({buffer.name: buffer for buffer in item.buffers})
        made.update(buffer.name for buffer in (*item.outputs, *item.temporaries))
        if pins(item):
            kept.update(buffer.name for buffer in item.buffers)
    groups: dict[str, list[str]] = {}
    for name in kinds:
        groups.setdefault(root(name), []).append(name)
    for own, names in groups.items():
        if own in made and not kept.intersection(names):
            found = frozenset(name for name in names if kinds[name].dtype is FLOAT32)
            if found:
                yield found


def copy_of(source: Buffer, target: Buffer) -> Kernel:
    """A kernel that copies an input of a segment, so that the copy can be narrow."""
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(source.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(target.name, index, source[index]),))
    return Kernel(
        name="narrow", inputs=(source,), outputs=(target,), stages=(stage,), sources=(source.name,)
    )


def reading(kernel: Kernel, copies: Mapping[str, Buffer]) -> Kernel:
    """The kernel, of copies of what it reads."""
    if pins(kernel) or not any(buffer.name in copies for buffer in kernel.inputs):
        return kernel

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in copies:
            return load(copies[node.buffer].name, node.dtype, node.index)
        return None

    def renamed(store: Store) -> Store:
        return store.mapped(lambda root: transform(root, rule))

    return replace(
        kernel,
        inputs=tuple(copies.get(buffer.name, buffer) for buffer in kernel.inputs),
        stages=tuple(
            replace(stage, stores=tuple(map(renamed, stage.stores))) for stage in kernel.stages
        ),
    )
