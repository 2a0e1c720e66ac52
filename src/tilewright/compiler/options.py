"""Options of ``tilewright.compile``, checked.

Input -> Output: what a caller passes -> frozen ``CompileOptions`` (what the engine depends on) and
``Wishes`` (what else is to happen).
Guarantees: an unknown, misspelt or contradictory option is a ``BadOption`` that says what is
allowed; nothing is ignored.
Not here: what any option may be (core.check_option), whether contracts hold (compiler.contracts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tilewright.codegen.cuda.target import KNOWN, cuda_target, is_cuda
from tilewright.core import check_option as check
from tilewright.core import dtypes
from tilewright.core.errors import BadOption, BadTarget
from tilewright.core.plural import listed

Range = tuple[int | None, int | None]
Progress = Callable[[str, int, int], None]
USER_CACHE = "user"


# By whether the target is a GPU.
_PRECISIONS = {False: ("fp32", "bf16"), True: ("fp32", "fp16", "bf16")}
_QUANTIZED = ("auto", "int8", "int4", "fp8", "float8")  # are made by quantise, which has data


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """A contract: the build fails rather than break it.

    Attributes:
        compiled: no node may be interpreted.
        device: where every node must run, ``cpu``.
        dtypes: types that kernels may compute in; wide integers and bools are always allowed.
        max_error: largest error against the float64 reference, relative to the largest value.
        deterministic: equal inputs give equal results in every run (nothing draws without a seed).
    """

    compiled: bool = False
    device: str | None = None
    dtypes: tuple[str, ...] = ()
    max_error: float | None = None
    deterministic: bool = False

    @staticmethod
    def of(value: Require | Iterable[str] | Mapping[str, Any] | None) -> Require:
        """Reads ``["compiled", "max_error=1e-5"]``, ``"compiled,device=cpu"``, a mapping or a
        ``Require``.

        Raises:
            BadOption: an unknown contract or value.
        """
        readers = {
            "compiled": _flag,
            "deterministic": _flag,
            "max_error": _number,
            "device": _device,
            "dtypes": _types,
        }
        settings: dict[str, Any] = {}
        for name, setting in _settings(value):
            if name in settings:
                raise BadOption(f"contract {name} is given twice", remedy="give it once")
            if name not in readers:
                raise BadOption(
                    f"unknown contract {name!r}",
                    remedy="use compiled, deterministic, device=cpu, dtypes=float32+int8 or "
                    "max_error=NUMBER",
                )
            settings[name] = readers[name](name, setting)
        return Require(**settings)


def _settings(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Require):
        given = ((part.name, getattr(value, part.name), part.default) for part in fields(value))
        return [(name, setting) for name, setting, default in given if setting is not default]
    if isinstance(value, Mapping):
        return list(check.by_name("require", value, 'require={"compiled": True}').items())
    pairs = (item.partition("=") for item in check.names("require", value, '["compiled"]'))
    return [(name.strip(), text.strip()) for name, _, text in pairs]


def _flag(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text in ("", "true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise BadOption(f"contract {name}={value!r}", remedy=f"write {name} or {name}=false")


def _device(name: str, value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise BadOption(
            f"contract {name} without a name: {check.shown(value)}", remedy="for example device=cpu"
        )
    return text


def _types(name: str, value: Any) -> tuple[str, ...]:
    """``float32+int8`` or a list of names."""
    given = value.split("+") if isinstance(value, str) else value
    found = [part for part in check.names(f"contract {name}", given, '["float32"]') if part]
    unknown = sorted(set(found) - set(dtypes.BY_NAME))
    if unknown or not found:
        raise BadOption(
            f"contract dtypes={value!r}: unknown types {listed(unknown)}"
            if unknown
            else "no dtypes",
            remedy="for example dtypes=float32+int8",
        )
    return tuple(dict.fromkeys(found))


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadOption(
            f"{name}={check.shown(value)} is no number", remedy="for example 1e-5"
        ) from error
    if not 0 < number < math.inf:
        raise BadOption(f"{name}={check.shown(value)}", remedy="use a positive number")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Everything that a build depends on besides the model.

    Attributes:
        target: ``cpu``, ``cuda``, or architectures of GPUs as ``sm_80+sm_90``.
        cpu: processor's name, or None for this machine.
        precision: ``fp32``: every operator in the types that the model states; ``fp16``, on GPUs:
            float32 values inside of the network are kept as float16; ``bf16``: on GPUs they are
            kept as bfloat16, on CPUs weights and what they multiply are rounded to it; sums are
            float32.
        threads: threads of a run.
        ranges: declared range of symbolic dims.
        require: the contract.
        disable: algorithms and tactics not to choose, to see what they are worth.
        candidates: ways to run each kernel of a GPU that the engine has, for `tilewright tune`.
        integer_only: functions between integers are computed in integers.
    """

    target: str = "cpu"
    cpu: str | None = None
    precision: str = "fp32"
    threads: int = 1
    ranges: Mapping[str, Range] = field(default_factory=dict)
    require: Require = field(default_factory=Require)
    disable: tuple[str, ...] = ()
    integer_only: bool = False
    candidates: int = 1


def make_options(
    *,
    target: Any,
    cpu: Any,
    precision: Any,
    threads: Any,
    dims: Any,
    require: Any,
    disable: Any = (),
    integer_only: Any = False,
    candidates: Any = 1,
) -> CompileOptions:
    """Validates options.

    Raises:
        BadOption: a value is unknown or out of range.
        BadTarget: the target or the processor is unknown.
    """
    given = check.by_name("dims", dims, 'dims={"batch": (1, 8)}')
    return CompileOptions(
        target=_target(target, cpu),
        cpu=_processor(cpu),
        precision=_precision(precision, is_cuda(target)),
        threads=check.thread_count(threads),
        ranges={name: _range(name, value) for name, value in given.items()},
        require=Require.of(require),
        disable=_disabled(disable, is_cuda(target)),
        integer_only=check.flag("integer_only", integer_only),
        candidates=_candidates(candidates, is_cuda(target)),
    )


def _candidates(number: Any, on_gpu: bool) -> int:
    count = check.whole("candidates", number, 1)
    if count > 1 and not on_gpu:
        raise BadOption(
            f"candidates={count} is for GPUs",
            remedy="schedules of CPUs are tuned while compiling: time_budget (--time-budget)",
        )
    return count


def _target(name: Any, cpu: Any) -> str:
    if not is_cuda(name):
        return check.one_of("target", name, ("cpu", "cuda", *KNOWN), BadTarget)
    if cpu is not None:
        raise BadOption(f"cpu={cpu!r} with the target {name}", remedy="drop one of them")
    cuda_target(name)
    return str(name)


def _precision(name: Any, on_gpu: bool) -> str:
    if isinstance(name, str) and name == "fp16" and not on_gpu:
        raise BadOption(
            "precision fp16 is for GPUs",
            remedy="it needs target=cuda (--target cuda), or use bf16 or fp32",
        )
    if isinstance(name, str) and name in _QUANTIZED:
        raise BadOption(
            f"precision {name} takes data to calibrate with, and compile has none",
            remedy="quantise first, and compile what that writes: tilewright quantize --data, "
            "tw.quantize(model, data); with a budget (--max-drop, --min-sqnr) it chooses "
            "the precision of each node",
        )
    return check.one_of("precision", name, _PRECISIONS[on_gpu])


def _processor(name: Any) -> str | None:
    from tilewright.codegen.cpu.target import known_targets

    known = ("host", "native", *known_targets())
    return None if name is None else check.one_of("processor", name, known, BadTarget)


def _disabled(given: Any, on_gpu: bool) -> tuple[str, ...]:
    known = _optional(on_gpu)
    chosen = tuple(sorted(set(check.names("disable", given, '["winograd"]'))))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise BadOption(
            f"disable: {listed(unknown)} cannot be disabled",
            remedy=f"use one of {', '.join(known)}",
        )
    return chosen


def _optional(on_gpu: bool) -> tuple[str, ...]:
    """What a caller can switch off."""
    if on_gpu:
        from tilewright.codegen.cuda import tactics

        return tactics.OPTIONAL
    from tilewright.codegen.cpu.tactics import OPTIONAL
    from tilewright.lower.layout import ALGORITHMS

    return (*ALGORITHMS, *OPTIONAL)


def _range(name: str, value: Any) -> Range:
    """A size, or (lowest, highest) with None for an open end."""
    ends = (value, value) if check.is_whole(value) else value
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise BadOption(
            f"dims: range of {name}: {check.shown(value)}",
            remedy="use (lowest, highest) or one size",
        )
    low, high = (
        None if end is None else check.whole(f"dims: range of {name}", end, 0) for end in ends
    )
    if low is not None and high is not None and low > high:
        raise BadOption(f"dims: range of {name}: {low} is above {high}", remedy="swap them")
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How schedules are chosen by timing.

    Attributes:
        search: time schedules that the store does not know.
        budget_s: seconds for that; None: until all candidates were timed.
        store: file of timings; None keeps them for this build only.
    """

    search: bool = False
    budget_s: float | None = None
    store: Path | None = None


def make_tuning(*, tune: Any, time_budget: Any, timing_store: Any) -> Tuning | None:
    """The wishes of a caller; None where nothing is timed or looked up.

    Raises:
        BadOption: a value is of a wrong type, or the budget is not above 0.
    """
    search = check.flag("tune", tune) or time_budget is not None
    store = _path("timing_store", timing_store)
    budget_s = None if time_budget is None else _seconds("time_budget", time_budget)
    return Tuning(search=search, budget_s=budget_s, store=store) if search or store else None


def check_tunable(target: str, *, search: bool, candidates: int = 1) -> None:
    """Refuses to time kernels of GPUs while compiling, and to choose for later and now at once.

    Raises:
        BadOption: the target is a GPU.
    """
    if is_cuda(target) and search:
        raise BadOption(
            f"time_budget or tune with the target {target}: its kernels are timed on the GPU",
            remedy="compile with candidates=6 (--candidates 6), and then `tilewright tune` there",
        )
    if candidates > 1:
        raise BadOption(
            f"candidates={candidates} with a timing_store, which leaves one for each kernel",
            remedy="drop one of them",
        )


def _seconds(option: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise BadOption(f"{option} is {check.shown(value)}", remedy="use seconds, above 0")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a caller wants besides the engine.

    Attributes:
        verify: compare the engine with the reference.
        verify_passes: compare the graph after every pass with the graph before it.
        verify_feeds: inputs by name for the comparison; None for random ones.
        reproducer: folder for the smallest part that a wrong pass changes.
        dump_graph: file for the graph after the passes.
        dump_kernels: folder for the text of each kernel.
        cache: folder of compiled kernels, ``USER_CACHE`` for the user's, None for none.
        tuning: how schedules are chosen; None: by formula.
        progress: called with (stage, done, total).
    """

    verify: bool
    verify_passes: bool
    verify_feeds: Mapping[str, Any] | None
    reproducer: Path | None
    dump_graph: Path | None
    dump_kernels: Path | None
    cache: Path | str | None
    tuning: Tuning | None
    progress: Progress | None


def make_wishes(
    *,
    verify: Any,
    verify_passes: Any,
    verify_feeds: Any,
    reproducer: Any = None,
    dump_graph: Any,
    dump_kernels: Any,
    cache: Any,
    tune: Any = False,
    time_budget: Any = None,
    timing_store: Any = None,
    progress: Any,
) -> Wishes:
    """Validates what ``compile`` is asked for besides an engine.

    Raises:
        BadOption: a value is of a wrong type, or inputs are given for no comparison.
    """
    checked = check.flag("verify", verify)
    passes = check.flag("verify_passes", verify_passes)
    tuning = make_tuning(tune=tune, time_budget=time_budget, timing_store=timing_store)
    if verify_feeds is not None:
        verify_feeds = check.by_name("verify_feeds", verify_feeds, 'verify_feeds={"x": array}')
        if not (checked or passes) and (tuning is None or not tuning.search):
            raise BadOption(
                "verify_feeds are given, but verify is off", remedy="drop one of the two options"
            )
    if reproducer is not None and not passes:
        raise BadOption(
            "reproducer is given, but verify_passes is off",
            remedy="add verify_passes; `tilewright verify --reproducer` takes finished engines",
        )
    users_own = isinstance(cache, str) and cache == USER_CACHE
    return Wishes(
        verify=checked,
        verify_passes=passes,
        verify_feeds=verify_feeds,
        reproducer=_path("reproducer", reproducer),
        dump_graph=_path("dump_graph", dump_graph),
        dump_kernels=_path("dump_kernels", dump_kernels),
        cache=USER_CACHE if users_own else _path("cache", cache),
        tuning=tuning,
        progress=check.function("progress", progress),
    )


def _path(option: str, value: Any) -> Path | None:
    return None if value is None else check.file_path(option, value)
