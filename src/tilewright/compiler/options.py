"""Options of ``tilewright.compile``, checked.

Input -> Output: what a caller passes -> a frozen ``CompileOptions``.
Guarantees: an unknown, misspelt or contradictory option is a ``BadOption`` that says what is
allowed; nothing is ignored.
Not here: whether contracts hold (compiler.contracts).
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.core import dtypes
from tilewright.core.errors import BadOption, BadTarget

Range = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """A contract: the build fails rather than break it.

    Attributes:
        compiled: no node may be interpreted.
        device: where every node must run, ``cpu``.
        dtypes: types that kernels may compute in; wide integers and bools are always allowed.
        max_error: largest error against the float64 reference, relative to the largest value.
        deterministic: equal inputs give equal engines and equal results (always kept on the CPU).
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
        if isinstance(value, Require):
            return value
        fields: dict[str, Any] = {}
        for name, setting in _settings(value):
            if name in fields:
                raise BadOption(f"contract {name} is given twice", remedy="give it once")
            if name in ("compiled", "deterministic"):
                fields[name] = _flag(name, setting)
            elif name == "max_error":
                fields[name] = _number(setting)
            elif name == "device":
                fields[name] = _device(setting)
            elif name == "dtypes":
                fields[name] = _types(setting)
            else:
                raise BadOption(
                    f"unknown contract {name!r}",
                    remedy="use compiled, deterministic, device=cpu, dtypes=float32+int8 or "
                    "max_error=NUMBER",
                )
        return Require(**fields)


def _settings(value: Iterable[str] | Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    items = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(items, Iterable):
        raise BadOption(f"require={value!r}", remedy='for example require=["compiled"]')
    pairs = (str(item).partition("=") for item in items)
    return [(name.strip(), text.strip()) for name, _, text in pairs]


def _flag(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text in ("", "true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise BadOption(f"contract {name}={value!r}", remedy=f"write {name} or {name}=false")


def _device(value: Any) -> str:
    text = str(value).strip()
    if not text:
        raise BadOption("contract device without a name", remedy="for example device=cpu")
    return text


def _types(value: Any) -> tuple[str, ...]:
    """``float32+int8`` or a list of names."""
    names = value.split("+") if isinstance(value, str) else [str(name) for name in value]
    names = [name.strip() for name in names if name.strip()]
    unknown = sorted(set(names) - set(dtypes.BY_NAME))
    if unknown or not names:
        raise BadOption(
            f"contract dtypes={value!r}: unknown types {unknown}" if unknown else "no dtypes",
            remedy="for example dtypes=float32+int8",
        )
    return tuple(dict.fromkeys(names))


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise BadOption(f"max_error={value!r} is no number", remedy="for example 1e-5") from error
    if not 0 < number < math.inf:
        raise BadOption(f"max_error={value!r}", remedy="use a positive number")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Everything that a build depends on besides the model.

    Attributes:
        target: ``cpu``.
        cpu: processor's name, or None for this machine.
        precision: ``fp32``: every operator in the types that the model states.
        threads: threads of a run.
        ranges: declared range of symbolic dims.
        require: the contract.
        disable: algorithms and tactics not to choose, to see what they are worth.
    """

    target: str = "cpu"
    cpu: str | None = None
    precision: str = "fp32"
    threads: int = 1
    ranges: Mapping[str, Range] = field(default_factory=dict)
    require: Require = field(default_factory=Require)
    disable: tuple[str, ...] = ()


def make_options(
    *,
    target: str,
    cpu: str | None,
    precision: str,
    threads: int | None,
    dims: Mapping[str, Any] | None,
    require: Any,
    disable: Iterable[str] = (),
) -> CompileOptions:
    """Validates options.

    Raises:
        BadOption: a value is unknown or out of range.
        BadTarget: the target is unknown.
    """
    if target != "cpu":
        raise BadTarget(f"unknown target {target!r}", remedy="use cpu")
    if precision != "fp32":
        raise BadOption(f"unknown precision {precision!r}", remedy="use fp32")
    count = len(os.sched_getaffinity(0)) if threads is None else _whole(threads)
    if count is None or not 1 <= count <= 1024:
        raise BadOption(f"threads is {threads!r}", remedy="use 1 .. 1024")
    if not isinstance(dims or {}, Mapping):
        raise BadOption(f"dims is {dims!r}", remedy='for example dims={"batch": (1, 8)}')
    ranges = {str(name): _range(str(name), value) for name, value in (dims or {}).items()}
    return CompileOptions(
        target=target,
        cpu=cpu,
        precision=precision,
        threads=count,
        ranges=ranges,
        require=Require.of(require),
        disable=_disabled(disable),
    )


def _disabled(names: Iterable[str]) -> tuple[str, ...]:
    from tilewright.codegen.cpu.tactics import OPTIONAL
    from tilewright.lower.layout import ALGORITHMS

    known = (*ALGORITHMS, *OPTIONAL)
    chosen = tuple(sorted({names} if isinstance(names, str) else set(names)))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise BadOption(f"{unknown} cannot be disabled", remedy=f"use one of {', '.join(known)}")
    return chosen


def _range(name: str, value: Any) -> Range:
    """A size, or (lowest, highest) with None for an open end."""
    size = _whole(value)
    ends = (size, size) if size is not None else value
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise BadOption(f"range of {name}: {value!r}", remedy="use (lowest, highest) or one size")
    low, high = (None if end is None else _whole(end) for end in ends)
    wrong = [
        end for end, read in zip(ends, (low, high), strict=True) if (end is None) != (read is None)
    ]
    if wrong or (low or 0) < 0 or (high or 0) < 0:
        raise BadOption(f"range of {name}: {value!r}", remedy="use whole numbers of at least 0")
    if low is not None and high is not None and low > high:
        raise BadOption(f"range of {name}: {low} is above {high}", remedy="swap them")
    return low, high


def _whole(value: Any) -> int | None:
    """A whole number (NumPy's too, no bool), or None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
