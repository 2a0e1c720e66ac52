"""Vertical fusion: kernels absorb what they load, so that values stay in registers.

Input -> Output: a segment's items in order -> fewer kernels, and a decision for each fusion or
refusal.
    t[i] = f(x[i]);  y[i] = g(t[i])                ->  y[i] = g(f(x[i]))              prologue
    c[m, n] = sum(k: a[m, k]*b[k, n]);  y = f(c+v) ->  y[m, n] = f(sum(...) + v)      epilogue
Requires: verified kernels in execution order.
Guarantees: values are unchanged (intermediate casts stay); only pure kernels are absorbed; every
refusal has a reason.
Not here: what is legal (lower.fusion_rules), horizontal fusion (graph.passes), layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import Buffer, Expr, Kernel, Stage, rebuild, substitute, walk
from tilewright.lower.context import Item, View
from tilewright.lower.fusion_rules import Body, Consumer, Loads, part_of, pure_body, reason_against
from tilewright.lower.reindex import Refusal, through_view
from tilewright.lower.requantized_values import simplify


@dataclass(slots=True)
class Fusion:
    """The state of one segment's fusion."""

    log: DecisionLog
    keep: Collection[str]
    bodies: dict[str, Body] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    refusals: set[tuple[str, str, str]] = field(default_factory=set)

    def chain(self, name: str) -> list[View]:
        """The views between a buffer and the memory that it stands for."""
        found: list[View] = []
        while name in self.views:
            found.append(self.views[name])
            name = found[-1].source.name
        return found

    def origin(self, name: str) -> Body | None:
        """The pure kernel that computes a buffer, through views."""
        chain = self.chain(name)
        return self.bodies.get(chain[-1].source.name if chain else name)

    def refuse(self, name: str, body: Body, consumer: Consumer, reason: str) -> None:
        """Logs a refusal, unless it was said of a kernel that the consumer has absorbed."""
        said = {(name, reason, source) for source in consumer.sources}
        if said.isdisjoint(self.refusals):
            subject = f"{'+'.join(body.kernel.sources)} -> {'+'.join(consumer.sources)}"
            self.log.add("fuse_vertical", subject, "separate kernels", (("fuse", reason),))
        self.refusals |= said

    def is_shared(self, name: str) -> bool:
        """True when somebody else needs the buffer, or what it is a view of, in memory."""
        names = (name, *(view.source.name for view in self.chain(name)))
        return any(self.users.get(part, 0) > 1 or part in self.keep for part in names)


def fuse(items: Sequence[Item], keep: Collection[str], log: DecisionLog) -> list[Item]:
    """Fuses a segment.

    Args:
        items: kernels and views in execution order.
        keep: names of buffers that are read outside of the segment.
        log: receives the decisions.
    """
    state = Fusion(log=log, keep=frozenset(keep))
    _count_users(items, state)
    result: list[Item] = []
    for item in items:
        if isinstance(item, View):
            state.views[item.target.name] = item
            state.buffers[item.target.name] = item.target
            state.buffers.setdefault(item.source.name, item.source)
            result.append(item)
            continue
        for buffer in item.buffers:
            state.buffers.setdefault(buffer.name, buffer)
        consumer = Consumer(item, [part_of(stage) for stage in item.stages], list(item.sources))
        kernel = _absorb(consumer, state)
        if kernel.is_pure:
            state.bodies[kernel.outputs[0].name] = pure_body(kernel, consumer.parts[0].nodes)
        result.append(kernel)
    return _drop_dead(result, keep)


def _count_users(items: Sequence[Item], state: Fusion) -> None:
    for item in items:
        names = [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]
        for name in names:
            state.users[name] = state.users.get(name, 0) + 1


def _absorb(consumer: Consumer, state: Fusion) -> Kernel:
    """Inlines producers until no load can be replaced; the fused kernel."""
    kernel = consumer.kernel
    absorbed, refused = 0, set[str]()
    while True:
        body = _absorb_one(consumer, refused, state)
        if body is None:
            break
        absorbed += 1
        new = [source for source in body.kernel.sources if source not in consumer.sources]
        consumer.sources[:0] = new
    if not absorbed:
        return kernel
    state.log.add(
        "fuse_vertical",
        "+".join(consumer.sources),
        f"one kernel, {absorbed} values stay in registers",
    )
    own = {buffer.name for buffer in (*kernel.outputs, *kernel.temporaries)}
    inputs = tuple(state.buffers[name] for name in consumer.loads() if name not in own)
    stages = tuple(part.stage for part in consumer.parts)
    fused = replace(kernel, stages=stages, inputs=inputs, sources=tuple(consumer.sources))
    return simplify(fused)


def _absorb_one(consumer: Consumer, refused: set[str], state: Fusion) -> Body | None:
    """Inlines the first producer that may be; notes those that may not."""
    for name, loads in consumer.loads().items():
        body = None if name in refused else state.origin(name)
        if body is None:
            continue
        verdict = _replacement(consumer, name, loads, body, state)
        if not isinstance(verdict, Refusal):
            for number, stage in verdict.items():
                consumer.parts[number] = part_of(stage)
            return body
        refused.add(name)
        state.refuse(name, body, consumer, verdict.reason)
    return None


def _replacement(
    consumer: Consumer, name: str, loads: Loads, body: Body, state: Fusion
) -> dict[int, Stage] | Refusal:
    """The stages that change, with every load of ``name`` replaced by the producer's expression."""
    chain = state.chain(name)
    outputs = {buffer.name for buffer in consumer.kernel.outputs}
    reason = reason_against(
        consumer,
        name,
        loads,
        body,
        shared=state.is_shared(name),
        viewed=bool(chain),
        kept=not outputs.isdisjoint(state.keep),
    )
    if reason is not None:
        return Refusal(reason)
    stages: dict[int, Stage] = {}
    for number, own in loads.items():
        inlined: dict[int, Expr] = {}
        for node in own:
            index = node.index
            for view in chain:
                found = through_view(index, view.target.shape, view.source.shape)
                if isinstance(found, Refusal):
                    return found
                index = found
            values = {axis.name: part for axis, part in zip(body.axes, index, strict=True)}
            inlined[id(node)] = substitute(body.value, values)
        stages[number] = _map_stage(consumer.parts[number].stage, inlined)
    return stages


def _map_stage(stage: Stage, inlined: Mapping[int, Expr]) -> Stage:
    done: dict[int, Expr] = {}
    for node in walk(*stage.roots):
        done[id(node)] = inlined.get(id(node)) or rebuild(
            node, [done[id(child)] for child in node.children]
        )
    stores = tuple(store.mapped(lambda root: done[id(root)]) for store in stage.stores)
    return Stage(stage.axes, stores)


def _drop_dead(items: Sequence[Item], keep: Collection[str]) -> list[Item]:
    needed = set(keep)
    kept: list[Item] = []
    for item in reversed(items):
        written = [item.target] if isinstance(item, View) else list(item.outputs)
        if not any(buffer.name in needed for buffer in written):
            continue
        read = [item.source] if isinstance(item, View) else list(item.inputs)
        needed.update(buffer.name for buffer in read)
        kept.append(item)
    return kept[::-1]
