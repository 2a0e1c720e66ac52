"""Contracts that the build itself can break: compiled, device, types, deterministic.

Input -> Output: what the build decided so far -> nothing, or ``ContractBreach`` with every node
that breaks the contract and the reason.
Not here: ``max_error`` (verify), which needs a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.compiler.options import CompileOptions, Require
from tilewright.core import dtypes
from tilewright.core.dtypes import Kind
from tilewright.core.errors import ContractBreach
from tilewright.core.plural import plural
from tilewright.core.record import Placement
from tilewright.graph.passes.base import RANDOM
from tilewright.runtime.program import Interpret, KernelCall, Program, Segment, all_steps

_MOST = 20


def check_compiled(require: Require, interpreted: Sequence[tuple[str, str, str]]) -> None:
    """Refuses nodes without a kernel.

    Raises:
        ContractBreach: ``compiled`` is required and some node would be interpreted.
    """
    if require.compiled and interpreted:
        raise breach(
            f"compiled is required, but {plural(len(interpreted), 'node')} would be interpreted",
            [f"{node} ({op}): {why}" for node, op, why in interpreted],
            remedy="drop the contract `compiled`, or replace these operators in the model",
        )


def check_program(
    options: CompileOptions, program: Program, placements: Sequence[Placement]
) -> None:
    """Refuses devices and types that the contract does not name, and chance.

    Raises:
        ContractBreach: a node would run elsewhere, compute in another type, or differ from run to
            run.
    """
    require = options.require
    if require.device is not None and require.device != options.target:
        running = [p for p in placements if p.place in ("kernel", "host")]
        raise breach(
            f"device={require.device} is required, but {plural(len(running), 'node')} would run on "
            f"{options.target}",
            [f"{p.node} ({p.op_type}): the target is {options.target}" for p in running],
            remedy=f"compile with target={require.device!r}, or drop the contract `device`",
        )
    if require.dtypes:
        names = {name: p for p in placements for name in p.computed_by}
        found = list(_other_types(program, require.dtypes, names))
        if found:
            count = plural(len(found), "kernel")
            raise breach(
                f"dtypes={'+'.join(require.dtypes)} is required, but {count} "
                "would compute in other types",
                found,
                remedy="add these types to the contract, or change the model's precision",
            )
    drawing = list(_unseeded(program)) if require.deterministic else []
    if drawing:
        raise breach(
            f"deterministic is required, but {plural(len(drawing), 'node')} would give other "
            "results in every run",
            drawing,
            remedy="give these nodes a `seed`, or drop the contract `deterministic`",
        )


def _other_types(
    program: Program, allowed: Sequence[str], names: dict[str, Placement]
) -> Iterable[str]:
    for step in all_steps(program):
        if isinstance(step, Segment):
            for call in step.calls:
                if _is_arithmetic(call.dtype) and call.dtype not in allowed:
                    yield f"{_nodes(call, names)}: computes in {call.dtype}"
        elif isinstance(step, Interpret):
            for spec in step.outputs:
                if spec is None or spec.dtype.name in allowed:
                    continue
                if _is_arithmetic(spec.dtype.name):
                    yield f"{step.node} ({step.op_type}): gives {spec.dtype.name}"


def _unseeded(program: Program) -> Iterable[str]:
    """What draws numbers; a Dropout that still has to run is one that may train."""
    for step in (step for step in all_steps(program) if isinstance(step, Interpret)):
        if step.op_type in (*RANDOM, "Dropout") and step.attributes.get("seed") is None:
            yield f"{step.node} ({step.op_type}): draws random numbers without a seed"


def _is_arithmetic(name: str) -> bool:
    """Wide integers, bools and text are indices, masks and labels, which no precision concerns."""
    dtype = dtypes.BY_NAME.get(name)
    if dtype is None:
        return False
    return dtype.is_float or dtype.kind is Kind.COMPLEX or (dtype.is_integer and dtype.bits <= 8)


def _nodes(call: KernelCall, names: dict[str, Placement]) -> str:
    return " + ".join(
        f"{names[name].node} ({names[name].op_type})" if name in names else name
        for name in call.sources
    )


def breach(
    message: str, lines: Sequence[str], *, remedy: str, file: str | None = None
) -> ContractBreach:
    """An error with one line for each node, of which the first ones are shown."""
    shown = [*lines[:_MOST], *([f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else [])]
    return ContractBreach(":\n    ".join([message, "\n    ".join(shown)]), remedy=remedy, file=file)
