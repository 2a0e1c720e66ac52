"""Let kernels store the quantised form of their results: rows that are normalised, attention.

    y = norm(x);  q = quantized(y), y is read elsewhere     ->   y, q = norm(x), quantized(norm(x))
    y = attention(..);  q = quantized(y in another shape)   ->   q = quantized(attention(..))
Input -> Output: a fused draft, edited in place.
Requires: a kernel of bytes that reads nothing but that result, place by place; of attention, the
same formula everywhere, and nobody else who reads it.
Guarantees: every bit is kept: what is quantised is the value as it would be stored.
Not here: results of other kernels (lower.fuse).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tilewright.codegen.cuda.attention import attention_refusal
from tilewright.codegen.cuda.generate import generate
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.dtypes import FLOAT8_E4M3FN, INT8, UINT8
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import Buffer, Expr, Kernel, Load, Reduce, Store, substitute, walk
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import Item, View

_ROWS = "row"  # the tactic of kernels that normalise
_SUFFIX = "$quantized"


def store_quantized_program(
    program: DraftProgram, constants: Collection[str], log: DecisionLog
) -> None:
    """Joins kernels in every segment, those of sub-programs too."""
    for segment in program.segments():
        _Segment(segment, constants, log).join()


class _Segment:
    """The items of a segment by what they make, and how often each value is read."""

    def __init__(self, step: DraftSegment, constants: Collection[str], log: DecisionLog) -> None:
        self.step, self.constants, self.log = step, constants, log
        kernels = [item for item in step.items if isinstance(item, Kernel)]
        self.views = {item.target.name: item for item in step.items if isinstance(item, View)}
        self.makers = {k.outputs[0].name: k for k in kernels if k.is_pure}
        self.uses = Counter(buffer.name for kernel in kernels for buffer in kernel.inputs)
        self.uses.update(view.source.name for view in self.views.values())
        self.uses.update(step.keep)

    def join(self) -> None:
        """Edits the segment."""
        places: dict[int, Item | None] = {}
        for item in self.step.items:
            name = _only_input(item, self.constants) if isinstance(item, Kernel) else None
            if name is None or not isinstance(item, Kernel):
                continue
            found = self._with_rows(name, item) or self._with_attention(name, item)
            if found is not None and not places.keys() & found.keys():
                places.update({**found, id(item): None})
                self.log.add("store_quantized", item.name, f"by the kernel of {name}")
        made = (places.get(id(item), item) for item in self.step.items)
        self.step.items = [item for item in made if item is not None]

    def _with_rows(self, name: str, reader: Kernel) -> dict[int, Item] | None:
        """A kernel of rows that stores both."""
        maker = self.makers.get(name)
        if maker is None or maker.outputs[0].shape != reader.outputs[0].shape:
            return None
        if not any(isinstance(node, Reduce) for node in walk(*maker.roots)):
            return None
        if generate(maker).stages[0].tactic.split("(")[0] != _ROWS:
            return None
        (stage,), (other,) = maker.stages, reader.stages
        pairs = zip(other.axes, stage.axes, strict=True)
        moved = substitute(other.stores[0].value, {old.name: new.var for old, new in pairs})
        value = _of_stored(moved, name, stage.stores[0].value)
        second = Store(reader.outputs[0].name, stage.stores[0].index, value)
        made = _absorbing(maker, reader, name)
        outputs = (*maker.outputs, *reader.outputs)
        stages = (replace(stage, stores=(*stage.stores, second)),)
        return {id(maker): replace(made, outputs=outputs, stages=stages)}

    def _with_attention(self, name: str, reader: Kernel) -> dict[int, Item] | None:
        """Attention that stores the quantised form alone, in its own shape."""
        view = self.views.get(name)
        maker = self.makers.get(view.source.name) if view is not None else None
        if (
            view is None
            or maker is None
            or self.uses[name] != 1
            or self.uses[view.source.name] != 1
        ):
            return None
        (stage,), (other,) = maker.stages, reader.stages
        value = other.stores[0].value
        loads = [node for node in walk(value) if isinstance(node, Load)]
        if any(node.free_axes for node in loads if node.buffer != name):
            return None
        if attention_refusal(maker) is not None:
            return None
        (output,) = reader.outputs
        own = Buffer(output.name + _SUFFIX, output.dtype, maker.outputs[0].shape)
        value = _of_stored(value, name, stage.stores[0].value)
        store = replace(stage.stores[0], buffer=own.name, value=value)
        made = _absorbing(maker, reader, name)
        made = replace(made, outputs=(own,), stages=(replace(stage, stores=(store,)),))
        return {id(maker): made, id(view): View(target=output, source=own)}


def _only_input(kernel: Kernel, constants: Collection[str]) -> str | None:
    """The one computed value that a kernel of bytes reads, where it does so place by place."""
    if not kernel.is_pure or kernel.outputs[0].dtype not in (INT8, UINT8, FLOAT8_E4M3FN):
        return None
    names = [buffer.name for buffer in kernel.inputs if buffer.name not in constants]
    nodes = list(walk(*kernel.roots))
    if len(names) != 1 or any(isinstance(node, Reduce) for node in nodes):
        return None
    index = kernel.stages[0].stores[0].index
    loads = [node for node in nodes if isinstance(node, Load) and node.buffer == names[0]]
    return names[0] if all(node.index == index for node in loads) else None


def _of_stored(value: Expr, name: str, stored: Expr) -> Expr:
    """A value of what would be loaded."""

    def rule(node: Expr) -> Expr | None:
        return stored if isinstance(node, Load) and node.buffer == name else None

    return rewrite(value, rule)


def _absorbing(maker: Kernel, reader: Kernel, name: str) -> Kernel:
    """The maker with what its reader reads and is made of."""
    known = {own.name for own in maker.inputs}
    more = tuple(b for b in reader.inputs if b.name != name and b.name not in known)
    sources = (*maker.sources, *reader.sources)
    return replace(maker, inputs=(*maker.inputs, *more), sources=sources)
