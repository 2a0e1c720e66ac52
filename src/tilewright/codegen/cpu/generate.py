"""A kernel's stages to functions.

Input -> Output: a canonical ``Kernel`` and a target -> ``GeneratedKernel`` (LLVM IR text,
argument layout, how many parallel iterations each call has).  Each stage becomes ``void
stage_K(ptr args, i64 lo, i64 hi)``, stages that run in turns have a function beside theirs.
Guarantees: any verified kernel has code; iterations ``lo..hi`` of one stage may run on any
thread.
Not here: loop nests (stage_code), the choice of schedules (tactics), object code (objects),
calling (runtime.cpu).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.codegen.cpu.emit import I64, PTR, Module
from tilewright.codegen.cpu.layout import ArgumentLayout, argument_layout
from tilewright.codegen.cpu.stage_code import StageWriter
from tilewright.codegen.cpu.tactics import choose, rows_first
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import is_product
from tilewright.codegen.cpu.wave_code import write_wave
from tilewright.codegen.cpu.waves import Wave, by_rows, find_wave, folded
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Buffer, Call, Expr, Kernel, Load, Reduce, walk
from tilewright.kernel.nest import Nest, evaluated, prepare
from tilewright.kernel.schedule import Schedule

ONE = Dim.of(1)
_ACCESS = 4  # scalar operations that take as long as an access to the second cache


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedStage:
    """One function: the stage's number, its symbol, iteration count, and total cost in scalar
    operations.
    """

    number: int
    symbol: str
    iterations: Dim
    cost: Dim
    schedule: Schedule
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GeneratedCall:
    """A function to call: a stage, or several that run in turns; ``stages`` are their numbers."""

    symbol: str
    iterations: Dim
    cost: Dim
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A kernel's code before compilation.

    Attributes:
        stages: of the kernel, each a function; none for what a wave does itself.
        calls: what to call, in order.
        wave: the stages that run in turns, if any.
        refused: why stages that could do not.
    """

    text: str
    layout: ArgumentLayout
    stages: tuple[GeneratedStage, ...]
    calls: tuple[GeneratedCall, ...]
    wave: Wave | None
    refused: str = ""

    @property
    def rings(self) -> tuple[Buffer, ...]:
        """The temporaries that are not kept whole, as they are kept."""
        if self.wave is None:
            return ()
        spans = Dim.of(self.wave.num_spans)
        return tuple(
            replace(ring.buffer, shape=(spans, Dim.of(ring.size))) for ring in self.wave.rings
        )


def generate(
    kernel: Kernel,
    target: CpuTarget,
    schedules: Sequence[Schedule | None] | None = None,
    disabled: Collection[str] = (),
) -> GeneratedKernel:
    """Generates every stage, with the given schedule or, for None, the first fitting tactic's.

    Args:
        disabled: names of tactics not to choose.
    """
    whole, wave, refused = kernel, find_wave(kernel), ""
    if wave is not None:
        kernel = folded(whole, wave)
        found = _schedules(kernel, wave, target, schedules, disabled)
        if not isinstance(found, str):
            return _generate(kernel, wave, target, found)
        refused = found
    found = _schedules(whole, None, target, schedules, disabled)
    if isinstance(found, str):
        raise InternalError(f"stages one after another were refused: {found}")
    return replace(_generate(whole, None, target, found), refused=refused)


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """A stage's nest, its schedule, and the tactics that do not fit it."""

    number: int
    nest: Nest
    schedule: Schedule
    refused: tuple[tuple[str, str], ...]


def _schedules(
    kernel: Kernel,
    wave: Wave | None,
    target: CpuTarget,
    schedules: Sequence[Schedule | None] | None,
    disabled: Collection[str],
) -> list[_Scheduled] | str:
    """All stages but borders of rings; or why a stage of the wave cannot go by rows."""
    found: list[_Scheduled] = []
    for number, stage in enumerate(kernel.stages):
        if wave is not None and number in wave.borders:
            continue
        nest = prepare(kernel, stage)
        schedule, refused = choose(nest, target, disabled)
        if kernel.steps is not None:
            schedule = rows_first(nest, schedule)
        if wave is not None and number in wave.stages:
            ordered = by_rows(wave, number, nest, schedule)
            if isinstance(ordered, str):
                return f"stage {number}: {ordered}"
            schedule = ordered
        elif schedules is not None:
            schedule = schedules[number] or schedule
        found.append(_Scheduled(number, nest, schedule, refused))
    return found


def _generate(
    kernel: Kernel, wave: Wave | None, target: CpuTarget, scheduled: Sequence[_Scheduled]
) -> GeneratedKernel:
    layout = argument_layout(kernel, [one.nest for one in scheduled])
    module = Module(target)
    stages: list[GeneratedStage] = []
    for one in scheduled:
        symbol = f"stage_{one.number}"
        function = module.function(symbol, [("args", PTR), ("lo", I64), ("hi", I64)])
        writer = StageWriter(function, kernel, one.nest, one.schedule, layout)
        writer.write()
        stages.append(
            GeneratedStage(
                number=one.number,
                symbol=symbol,
                iterations=product(count for _, count in writer.digits()),
                cost=total_cost(one.nest),
                schedule=one.schedule,
                refused=one.refused,
            )
        )
    calls = [GeneratedCall(s.symbol, s.iterations, s.cost, (s.number,)) for s in stages]
    if wave is not None:
        calls = _in_turns(module, wave, layout, calls)
    return GeneratedKernel(
        text=module.text(), layout=layout, stages=tuple(stages), calls=tuple(calls), wave=wave
    )


def _in_turns(
    module: Module, wave: Wave, layout: ArgumentLayout, calls: Sequence[GeneratedCall]
) -> list[GeneratedCall]:
    """The calls with those of the wave's stages as one."""
    inside = [call for call in calls if call.stages[0] in wave.stages]
    symbol = f"wave_{wave.first}"
    write_wave(
        module, symbol, wave, layout, {call.stages[0]: call.iterations.const for call in inside}
    )
    cost = sum((call.cost for call in inside), Dim.of(0))
    joined = GeneratedCall(symbol, Dim.of(wave.num_spans), cost, tuple(wave.stages))
    return [joined if call is inside[0] else call for call in calls if call not in inside[1:]]


def total_cost(nest: Nest) -> Dim:
    """Scalar operations of a whole nest, roughly: 1 for each operation at each point, more for what
    goes through memory.
    """
    points = product(axis.extent for axis in nest.axes)
    costs = (_cost(root) for store in nest.stage.stores for root in evaluated(store))
    return points * (sum(costs, Dim.of(0)) + _ACCESS * len(nest.stage.stores))


def _cost(root: Expr) -> Dim:
    """Operations of one point; what is shared belongs to its first user."""
    costs: dict[int, Dim] = {}
    tiled = {id(part) for node in walk(root) if is_product(node) for part in walk(node)}
    for node in walk(root):
        inner = (costs.pop(id(child), None) for child in node.children)
        own = int(isinstance(node, Call))
        if isinstance(node, Load) and id(node) not in tiled:
            own = _ACCESS
        total = sum((cost for cost in inner if cost is not None), Dim.of(own))
        if isinstance(node, Reduce):
            total = (total + 1) * product(axis.extent for axis in node.axes)
        costs[id(node)] = total
    return costs[id(root)]
