"""The explanation of an engine.

Input -> Output: an engine's parts, inputs or sizes -> ``Explanation``, timed if it runs here.
Guarantees: sizes and inputs that nobody gave are made up, and the explanation names them.
Not here: explaining a model without building it (compiler.estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.core import check_option as check
from tilewright.core.errors import BadOption, BadTarget, OutOfRange, ShapeMismatch
from tilewright.core.plural import listed
from tilewright.hw.lookup import find_board
from tilewright.report.explanation import Explanation
from tilewright.report.profile import Profile
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.example_feeds import assumed_sizes, can_be_random, make_feeds
from tilewright.runtime.explain.collect import (
    constant_sizes,
    explain,
    footprint_bytes,
    unknown_sizes,
)
from tilewright.runtime.explain.floors import Floors, board_floors, cpu_floors
from tilewright.runtime.explain.kernels import Subject
from tilewright.runtime.feeds import Range, check_feeds

Measure = Callable[[Mapping[str, Any]], Profile]


def subject_of(parts: EngineParts) -> Subject:
    """What an engine says of itself."""
    return Subject(
        title=str(parts.info.get("model", "engine")),
        program=parts.program,
        constants=constant_sizes(parts.constants),
        decisions=parts.decisions,
        placements=parts.placements,
        info=parts.info,
    )


def explain_engine(
    parts: EngineParts,
    *,
    feeds: Mapping[str, Any],
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    threads: int,
    board: str | None,
    runs_here: bool,
    measure: Measure | None,
    precision: str | None = None,
    gpu: str | None = None,
) -> Explanation:
    """Explains an engine.

    Args:
        feeds: inputs to time it with, or to take sizes from; may be empty.
        sizes: of symbolic dims, where there are no feeds.
        ranges: declared range of dims.
        threads: of a run.
        board: a GPU whose roofs are taken instead of this machine's; nothing is timed then.
        runs_here: whether this machine can run the engine.
        measure: times runs on inputs; None where nothing is to be timed.
        precision: another one whose worth is to be told.
        gpu: name of the GPU that runs the engine; None for a CPU.

    Raises:
        BadOption: a size is of no dim.
        BadTarget: the board is unknown.
        UserError: the inputs do not fit.
    """
    subject = subject_of(parts)
    known, assumed = settled_sizes(subject, sizes, ranges)
    warnings: list[str] = []
    profile: Profile | None = None
    if not runs_here:
        warnings.append(f"made for {parts.info.get('cpu')}, which is not here: nothing was timed")
    elif board is None and measure is not None:
        if feeds:
            profile, assumed = measure(feeds), []
        else:
            profile = _measured_on_examples(subject, known, measure, warnings)
    if feeds and profile is None:  # their sizes count all the same
        known, assumed = {**known, **check_feeds(feeds, parts.program.inputs, ranges)[1]}, []
    if profile is not None:
        known = {**known, **profile.sizes}
    footprint = footprint_bytes(subject, known)
    floors = None
    if board is not None or runs_here:
        known_board = board if board is not None or gpu is None else _board_of(gpu, warnings)
        if gpu is None or known_board is not None:
            cpu = str(parts.info.get("cpu", ""))
            floors = device_floors(known_board, cpu, threads, footprint)
    return explain(
        subject,
        sizes=known,
        assumed=assumed,
        profile=profile,
        floors=floors,
        warnings=warnings,
        precision=precision,
    )


def settled_sizes(
    subject: Subject, sizes: Mapping[str, int], ranges: Mapping[str, Range]
) -> tuple[dict[str, int], list[str]]:
    """A size for every symbolic dim of the inputs, and the names of those that nobody gave.

    Raises:
        BadOption: a size is of no dim.
    """
    needed = unknown_sizes(subject.program, {})
    unknown = sorted(set(sizes) - set(needed))
    if unknown:
        raise BadOption(
            f"no input has a dim {listed(unknown)}", remedy=f"the dims are {listed(needed)}"
        )
    assumed = assumed_sizes(subject.program.inputs, ranges)
    return {**assumed, **sizes}, sorted(set(assumed) - set(sizes))


def device_floors(board: str | None, cpu: str, threads: int, footprint: float) -> Floors:
    """Roofs of a GPU by name, or of this machine.

    Raises:
        BadTarget: the board is unknown.
    """
    if board is not None:
        return board_floors(find_board(check.text("board", board)), footprint)
    return cpu_floors(cpu, threads, footprint)


def _board_of(gpu: str, warnings: list[str]) -> str | None:
    """The name in the tables of a GPU that runs here."""
    try:
        return find_board(gpu).name
    except BadTarget:
        warnings.append(f"no roofs are known of {gpu}: --on BOARD takes those of another GPU")
        return None


def _measured_on_examples(
    subject: Subject, sizes: Mapping[str, int], measure: Measure, warnings: list[str]
) -> Profile | None:
    inputs = subject.program.inputs
    if not can_be_random(inputs):
        warnings.append("nothing was timed: the inputs cannot be random; give them")
        return None
    try:
        profile = measure(make_feeds(inputs, sizes))
    except (ShapeMismatch, OutOfRange) as error:
        warnings.append(f"nothing was timed: random inputs do not fit ({error.message})")
        return None
    if inputs:
        warnings.append("timed on random inputs")
    return profile
