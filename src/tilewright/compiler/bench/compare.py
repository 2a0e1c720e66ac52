"""Compares runtimes on one model: outputs first, then times in turns.

Model, inputs, contenders -> ``Comparison``.
Method: each contender has a process of its own with the same processors and number of threads;
outputs are compared before anything is timed; then the contenders take turns at short batches, so
that a change of clock or load meets all of them. A canary of multiply-adds on the same processors
begins and ends each round; rounds in which the machine was slow are thrown away and made up for.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tilewright.compiler.bench.contender import Canary, CannotRun, Contender
from tilewright.compiler.bench.machine import describe_commit, describe_device
from tilewright.compiler.bench.model_precision import model_precision
from tilewright.compiler.bench.options import BenchOptions, check_options
from tilewright.compiler.bench.outputs import errors_of
from tilewright.compiler.bench.peers import OURS
from tilewright.compiler.bench.peers.opened import EXACT
from tilewright.compiler.bench.results import (
    Comparison,
    Round,
    Timing,
    canaries_of,
    is_kept,
    kept_samples_us,
)
from tilewright.compiler.feeds import Arrays, InputSpec, load_npz, random_feeds
from tilewright.core.errors import BadOption, CacheError, UserError
from tilewright.core.npz import save_npz
from tilewright.core.plural import listed, plural
from tilewright.core.recognise import is_engine
from tilewright.hw.roofs import load_all_measured

SETTLE_S = 0.02  # before a batch: the other contenders' threads stop spinning meanwhile
RANDOM = "random inputs may be none that the model is for: give real ones with --npz"
_MOST_ROUNDS = 2  # times those asked for, where many are thrown away
Progress = Callable[[str], None]


def check_request(model: Path, options: BenchOptions) -> None:
    """Refuses before anything is started.

    Raises:
        BadOption: an option is out of range.
        UserError: there is no such model, or it is an engine.
    """
    check_options(options)
    if not model.is_file():
        raise UserError("no such file", file=os.fspath(model), remedy="check the path")
    if is_engine(model):
        raise UserError(
            "this is an engine; bench compares runtimes on an ONNX file",
            file=os.fspath(model),
            remedy="name the ONNX file that the engine was built from",
        )


def bench(
    model: Path,
    options: BenchOptions,
    *,
    feeds: Arrays | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Times Tilewright and its peers on one model.

    Args:
        model: an ONNX file.
        options: peers, threads, how long.
        feeds: inputs by name; by default those of the ``.npz`` beside the model, else random ones.
        sizes: sizes of the symbolic dims for random inputs.
        progress: is told what goes on.

    Raises:
        BadOption: an option is out of range, a peer cannot run here, or a dim has no size.
        VerificationFailed: outputs differ by more than the tolerance; nothing is timed then.
        UserError: Tilewright cannot run the model, or none of the peers can.
    """
    check_request(model, options)
    say = progress or (lambda _: None)
    threads = plural(options.threads, "thread")
    left_out: dict[str, CannotRun] = {}
    with ExitStack() as stack:
        contenders = []
        for name in (*options.peers, OURS):
            say(f"{model.name}: preparing {name} with {threads}")
            with _may_fail(name, left_out, say):
                contenders.append(
                    stack.enter_context(Contender(name, model, options.threads, options.precision))
                )
        _require_precision(contenders, options.precision)
        is_random = not feeds and not _has_inputs_beside(model, sizes)
        feeds = feeds or _default_feeds(model, contenders[-1].specs, sizes or {}, say)
        _check_names(feeds, contenders)
        outputs = _outputs_of(contenders, feeds, left_out, say)
        contenders = [one for one in contenders if one.name in outputs]
        hint = RANDOM if is_random else None
        errors, wrong = errors_of(outputs, options.allowed, must=OURS, hint=hint)
        for name, message in wrong.items():
            left_out[name] = CannotRun(message)
            say(f"left out: {message}")
        contenders = [one for one in contenders if one.name not in wrong]
        if left_out and len(contenders) == 1:
            raise next(iter(left_out.values()))
        canary = stack.enter_context(Canary(options.threads))
        rounds = take_turns(contenders, canary, options, say)
    kind = model_precision(model)
    timings = [_timing(one, rounds, errors[one.name], kind) for one in contenders]
    ours = timings[-1]
    return Comparison(
        model=model.name,
        threads=options.threads,
        device=describe_device(),
        commit=describe_commit(),
        inputs={name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()},
        timings=timings,
        ratio_min={t.contender: t.min_us / ours.min_us for t in timings[:-1]},
        ratio_median={t.contender: t.median_us / ours.median_us for t in timings[:-1]},
        canaries=canaries_of(rounds, options.rounds, _roof_flops(options.threads)),
        left_out={name: error.message for name, error in left_out.items()},
    )


@contextmanager
def _may_fail(name: str, left_out: dict[str, CannotRun], say: Progress) -> Iterator[None]:
    """Remembers a peer that cannot run the model, and goes on without it."""
    try:
        yield
    except CannotRun as error:
        if name == OURS:
            raise
        left_out[name] = error
        say(f"left out: {error.message}")


def take_turns(
    contenders: Sequence[Contender], canary: Canary, options: BenchOptions, progress: Progress
) -> list[Round]:
    """Rounds until enough of them count, at most twice as many as were asked for."""
    rounds: list[Round] = []
    while len(rounds) < _MOST_ROUNDS * options.rounds:
        num_kept = sum(is_kept(one, rounds) for one in rounds)
        if num_kept >= options.rounds:
            break
        lost = len(rounds) - num_kept
        discarded = f", {lost} discarded as the machine was slow" if lost else ""
        progress(f"round {len(rounds) + 1}: {num_kept} of {options.rounds} counted{discarded}")
        time.sleep(SETTLE_S)
        before, trip_ns = canary.sing()
        samples_us = {}
        # Whoever goes first after a pause may meet a slower clock, so the order turns.
        for one in contenders if len(rounds) % 2 == 0 else reversed(contenders):
            time.sleep(SETTLE_S)
            samples_us[one.name] = one.time_us(options.batch_ms)
        time.sleep(SETTLE_S)
        after, other_trip_ns = canary.sing()
        trips_ns = [one for one in (trip_ns, other_trip_ns) if one is not None]
        rounds.append(
            Round(
                canary_flops=min(before, after),
                samples_us=samples_us,
                round_trip_ns=max(trips_ns, default=None),
            )
        )
    return rounds


def _require_precision(contenders: Sequence[Contender], wanted: str) -> None:
    """Sees that nobody computes in less than was asked for."""
    found = {one.name: one.precision for one in contenders}
    if not set(found.values()) <= {wanted, EXACT}:
        raise BadOption(
            f"the contenders differ in precision: {found}", remedy="compare equals with equals"
        )


def _default_feeds(
    model: Path,
    specs: Sequence[InputSpec],
    sizes: Mapping[str, int],
    progress: Progress,
) -> Arrays:
    beside = model.with_suffix(".npz")
    if _has_inputs_beside(model, sizes):
        progress(f"{model.name}: inputs from {beside.name}")
        return load_npz(beside)
    progress(f"{model.name}: random inputs")
    return random_feeds(specs, sizes)


def _has_inputs_beside(model: Path, sizes: Mapping[str, int] | None) -> bool:
    return not sizes and model.with_suffix(".npz").is_file()


def _check_names(feeds: Arrays, contenders: Sequence[Contender]) -> None:
    """Sees that the inputs are those of the model.

    Raises:
        BadOption: one is missing, or is of no input.
    """
    known = {spec.name for one in contenders for spec in one.specs}
    missing = [spec.name for spec in contenders[-1].specs if spec.name not in feeds]
    strange = [name for name in feeds if name not in known]
    if missing or strange:
        parts = [f"{listed(missing)} missing"] * bool(missing)
        parts += [f"{listed(strange)} of no input"] * bool(strange)
        raise BadOption(
            f"the inputs given are not those of the model: {'; '.join(parts)}",
            remedy=f"give an .npz with {listed(spec.name for spec in contenders[-1].specs)}",
        )


def _roof_flops(threads: int) -> float | None:
    """What multiply-adds of float32 reached when this machine's roofs were measured."""
    for roofs in load_all_measured():
        if roofs.threads == threads:
            return roofs.peaks_flops.get("float32")
    return None


def _outputs_of(
    contenders: Sequence[Contender], feeds: Arrays, left_out: dict[str, CannotRun], say: Progress
) -> dict[str, Arrays]:
    """Runs every contender once."""
    outputs: dict[str, Arrays] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as scratch:
            folder = Path(scratch)
            save_npz(folder / "feeds.npz", feeds)
            for one in contenders:
                with _may_fail(one.name, left_out, say):
                    one.check(folder / "feeds.npz", folder / f"{one.name}.npz")
                    outputs[one.name] = load_npz(folder / f"{one.name}.npz")
    except OSError as error:
        raise CacheError(
            f"scratch files cannot be written: {error.strerror}",
            remedy="free some space, or set TMPDIR to another folder",
        ) from error
    return outputs


def _timing(contender: Contender, rounds: Sequence[Round], error: float, kind: str) -> Timing:
    samples_us = kept_samples_us(rounds, contender.name)
    return Timing(
        contender=contender.name,
        version=contender.version,
        precision=kind if contender.precision == EXACT else contender.precision,
        settings=contender.settings,
        setup_s=contender.setup_s,
        num_runs=len(samples_us),
        min_us=min(samples_us),
        median_us=statistics.median(samples_us),
        error=error,
    )
