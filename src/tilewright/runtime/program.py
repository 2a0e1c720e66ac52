"""What an engine executes: plain records of steps, buffers and kernel calls.

Input -> Output: the compiler builds a ``Program``; the executor runs it; ``runtime.encode``
writes it as JSON.
Guarantees: closed set of step kinds; all sizes are ``Dim``s over symbols that inputs or earlier
steps set.
Not here: memory offsets (runtime.arena), machine code (runtime.cpu).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.core.dtypes import DType
from tilewright.core.shape import Dim, shape_text

ZERO = Dim.of(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """How a value is stored other than row by row.

    Attributes:
        dim: the dim that is split into blocks, whose inner part is the last dim in memory.
        block: elements of a block.
        size: elements of the dim; what is beyond them in the last block is zero.
        border: (dim, elements before, elements after) of each dim that has them.
    """

    dim: int
    block: int
    size: int
    border: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A named tensor, or a sequence/optional of tensors.

    Attributes:
        shape: symbolic dims as they are in memory; None when the rank is not known before it runs.
        container: ``tensor``, ``sequence`` or ``optional``.
        stored: how it is stored, None for row by row.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...] | None
    container: str = "tensor"
    stored: Blocked | None = None

    def __str__(self) -> str:
        kind = f"{self.container} of " if self.container != "tensor" else ""
        if self.shape is None:
            return f"{self.name} {kind}{self.dtype}, of any rank"
        return f"{self.name} {kind}{self.dtype}{shape_text(self.shape).replace('`', '')}"

    def __repr__(self) -> str:
        stored = "" if self.stored is None else f", {self.stored}"
        return f"TensorSpec({self}{stored})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCall:
    """One function of a kernel: symbol, parallel iterations, total cost in scalar operations."""

    symbol: str
    iterations: Dim
    cost: Dim

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """Everything that has to be evaluated for a call."""
        return self.iterations, self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A float16 matrix that a GPU's copy engine fetches boxes of: ``box`` rows by 64 columns.

    Attributes:
        buffer: number of the kernel's buffer that it lies in.
        offset: elements before it.
        stride: elements from a row to the next one.
        mixed: of 32 rows of a box, row 8 j + 2 q + e is row 8 q + 2 j + e of the matrix; its number
            of rows is a multiple of 32.
    """

    buffer: int
    offset: Dim
    rows: Dim
    columns: Dim
    stride: Dim
    box: int
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Float16 images with channels last, of which a GPU's copy engine fetches windows: for ``box``
    places, one after the other, 64 channels of a tap.

    Attributes:
        buffer: number of the kernel's buffer that they are.
        shape: images, height, width, channels.
        first, last: where the first and the last window begins, down and across.
        step: from a window to the next one, down and across.
    """

    buffer: int
    shape: tuple[int, int, int, int]
    first: tuple[int, int]
    last: tuple[int, int]
    step: tuple[int, int]
    box: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One function of a kernel on a GPU.

    Attributes:
        symbol: its name.
        grid: blocks along x, y and z; without any, nothing is launched.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
        checked: whether it checks indices that it reads, and so may report one.
        matrices: and images, of which the function gets a map each, after its other parameters.
    """

    symbol: str
    grid: tuple[Dim, Dim, Dim]
    threads: int
    shared_bytes: int = 0
    checked: bool = False
    matrices: tuple[Matrix | Image, ...] = ()

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """Everything that has to be evaluated for a launch."""
        return self.grid

    @property
    def is_possible(self) -> bool:
        """Whether a GPU can have such a block."""
        return 1 <= self.threads <= 1024 and 0 <= self.shared_bytes <= 227 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A call that runs only where a condition has a value: one side of an ``If``.

    Attributes:
        node: the ``If``.
        condition: buffer of one boolean.
        value: what it must be.
    """

    node: str
    condition: str
    value: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A kernel applied to buffers.

    Attributes:
        kernel: key of its object code in the engine.
        name: for people.
        sources: graph nodes computed.
        buffers: buffer names in the order of the argument block.
        dims: sizes in the order of the argument block.
        stages: what is called, in order; launches where the engine is for a GPU.
        steps: number of times that all stages run, or None for once.
        traffic: compulsory bytes of each of ``buffers`` (kernel.counts.count).
        flops: operations on values.
        dtype: name of the type whose peak bounds the kernel.
        tactic: how each stage runs.
        guards: all of them must hold for the call to run.
        alternatives: calls that compute the same in other ways, for a tuner to choose from.
    """

    kernel: str
    name: str
    sources: tuple[str, ...]
    buffers: tuple[str, ...]
    dims: tuple[Dim, ...]
    stages: tuple[StageCall | Launch, ...]
    steps: Dim | None = None
    traffic: tuple[Dim, ...] = ()
    flops: Dim = ZERO
    dtype: str = ""
    tactic: str = ""
    guards: tuple[Guard, ...] = ()
    alternatives: tuple[KernelCall, ...] = ()

    @property
    def bytes(self) -> Dim:
        """Compulsory bytes of all buffers."""
        return sum(self.traffic, ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A size that must not be negative: of a value, which may have no buffer of its own."""

    node: str
    value: str
    dim: Dim


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A binding's argument: the contents of a tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class DimsArg:
    """A binding's argument: sizes."""

    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class LiteralArg:
    """A binding's argument: a JSON value."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Sets symbols from data: ``symbols = BINDINGS[function](*args)``."""

    function: str
    args: tuple[TensorArg | DimsArg | LiteralArg, ...]
    symbols: tuple[str, ...]
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Sizes that can never fit, in a branch that may never run; whoever gets here gets an error."""

    node: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What must hold of the sizes of a run, known before anything runs.

    Attributes:
        test: a size that is not negative; a binding of sizes alone, that sets nothing; or
            something that never holds.
        guards: where they do not all hold, nothing depends on the test.
    """

    test: Extent | Bind | Refuse
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Kernel calls without anything in between that needs the host.

    Attributes:
        calls: in order.
        inputs, outputs: arrays that come from and go to the executor.
        internal: buffers in the arena, private kernel temporaries included.
        aliases: buffer name -> buffer whose memory it is under another shape.
        checks: what must hold of the sizes.
    """

    calls: tuple[KernelCall, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    internal: tuple[TensorSpec, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def all_calls(self) -> Iterator[KernelCall]:
        """The calls and their alternatives."""
        for call in self.calls:
            yield call
            yield from call.alternatives


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpret:
    """An operator that has no kernel, by its NumPy reference."""

    node: str
    domain: str
    op_type: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[TensorSpec | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """A value of the executor under another shape (no copy)."""

    source: str
    target: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """``If``: one of two programs."""

    node: str
    condition: str
    then: Program
    otherwise: Program
    outputs: tuple[TensorSpec | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """``Loop``: ``trips`` (or endless) iterations while the condition holds.

    ``body`` takes (iteration, condition, carried...) and gives (condition, carried..., scanned...).
    """

    node: str
    trips: str | None
    condition: str | None
    carried: tuple[str, ...]
    body: Program
    outputs: tuple[TensorSpec | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``Scan``: ``body`` takes (carried..., slices...) and gives (carried..., scanned...).

    Attributes:
        input_axes, output_axes: the axis of each scanned input and output.
        input_reversed, output_reversed: direction of each.
    """

    node: str
    carried: tuple[str, ...]
    scanned: tuple[str, ...]
    body: Program
    input_axes: tuple[int, ...]
    input_reversed: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_reversed: tuple[bool, ...]
    outputs: tuple[TensorSpec | None, ...]


Step = Segment | Bind | Interpret | Reshape | Refuse | Branch | Repeat | Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph as steps.

    Attributes:
        inputs: what the caller gives.
        outputs: the values that the caller gets, in order (names may repeat).
        steps: in order.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]


def all_steps(program: Program) -> Iterator[Step]:
    """Every step in order, those of sub-programs included."""
    for step in program.steps:
        yield step
        match step:
            case Branch():
                yield from all_steps(step.then)
                yield from all_steps(step.otherwise)
            case Repeat() | Sweep():
                yield from all_steps(step.body)


def map_segments(program: Program, change: Callable[[Segment], Segment]) -> Program:
    """The program with other segments, those of sub-programs too."""

    def changed(step: Step) -> Step:
        match step:
            case Segment():
                return change(step)
            case Branch():
                then, otherwise = (map_segments(p, change) for p in (step.then, step.otherwise))
                return replace(step, then=then, otherwise=otherwise)
            case Repeat() | Sweep():
                return replace(step, body=map_segments(step.body, change))
        return step

    return replace(program, steps=tuple(map(changed, program.steps)))


def reads(program: Program) -> set[str]:
    """Names of the values that steps and outputs read, those of sub-programs included."""
    names = {spec.name for spec in program.outputs}
    return names.union(*map(step_reads, program.steps))


def step_reads(step: Step) -> set[str]:
    """Names of the values that a step reads, those of its sub-programs included."""
    match step:
        case Segment():
            return {spec.name for spec in step.inputs}
        case Bind():
            return {arg.name for arg in step.args if isinstance(arg, TensorArg)}
        case Interpret():
            return {name for name in step.inputs if name}
        case Reshape():
            return {step.source}
        case Branch():
            return {step.condition} | reads(step.then) | reads(step.otherwise)
        case Repeat():
            own = {name for name in (step.trips, step.condition, *step.carried) if name}
            return own | reads(step.body)
        case Sweep():
            return {*step.carried, *step.scanned} | reads(step.body)
        case Refuse():
            return set()
