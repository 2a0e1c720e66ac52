"""Options of ``tilewright.quantize``, checked.

Input -> Output: what a caller passes -> ``QuantizeOptions``.
Guarantees: an unknown, misspelt or contradictory option is a ``BadOption`` with what is allowed.
Not here: data (data), budgets (search).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.compress.observers import METHODS, SHARE
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption

REMEDIES = (
    "equalize",
    "smooth",
    "gptq",
    "adaround",
    "bias-correction",
)  # in the order of their work
CONTRACTS = ("quantized",)
FORMATS = ("int8", "float8")
ACTIVATIONS = ("uint8", "int8", "dynamic")
FLOAT8_METHODS = ("minmax", "moving-average", "percentile")
FLOAT8_REMEDIES = ("bias-correction",)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """How a model is quantised.

    Attributes:
        format: ``int8`` (activations are uint8 or int8), or ``float8``: e4m3, without zero points.
        calibration: which range is made of what was seen (``observers.METHODS``).
        percentile: share of the numbers that the range of ``percentile`` holds.
        activations: ``uint8`` with a zero point, ``int8`` symmetric, or ``dynamic``: uint8 whose
            range is found in every run. Those of ``float8`` are symmetric.
        per_channel: whether each output channel of a layer has a weight scale.
        remedies: to apply; None: those that apply, chosen by rule.
        exclude: nodes to leave in float.
        carriers: whether what lies between layers works on integers too.
        all_quantized: whether a node that computes in float without being excluded is an error.
    """

    format: str = "int8"
    calibration: str = "minmax"
    percentile: float = SHARE
    activations: str = "uint8"
    per_channel: bool = True
    remedies: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    carriers: bool = True
    all_quantized: bool = False

    @property
    def symmetric(self) -> bool:
        """Whether activations have no zero point."""
        return self.format == "float8" or self.activations == "int8"


def make_options(
    *,
    format: Any = "int8",  # noqa: A002 (the name that callers use)
    calibration: Any = "minmax",
    percentile: Any = None,
    activations: Any = None,
    per_channel: Any = True,
    remedies: Any = "auto",
    exclude: Any = None,
    require: Any = None,
) -> QuantizeOptions:
    """Validates options.

    Raises:
        BadOption: a value is unknown, or contradicts another.
    """
    method = check.one_of("calibration", calibration, METHODS)
    of = check.one_of("format", format, FORMATS)
    if of == "float8":
        _check_float8(method, activations, remedies)
    kind = "uint8" if activations is None else check.one_of("activations", activations, ACTIVATIONS)
    if percentile is not None and method != "percentile":
        raise BadOption(
            f"percentile is given, but calibration is {method}",
            remedy="add calibration='percentile' (--calibration percentile), or drop percentile",
        )
    chosen = _remedies(remedies)
    if kind == "dynamic" and method != "minmax":
        raise BadOption(
            f"calibration {method} with dynamic activations, whose range is that of each run",
            remedy="drop one of them",
        )
    return QuantizeOptions(
        format=of,
        calibration=method,
        percentile=SHARE if percentile is None else _share(percentile),
        activations=kind,
        per_channel=check.flag("per_channel", per_channel),
        remedies=chosen,
        exclude=tuple(check.names("exclude", exclude, '["/conv1/Conv"]')),
        carriers=kind != "dynamic",
        all_quantized=all_quantized(require),
    )


def _check_float8(method: str, activations: Any, remedies: Any) -> None:
    """Refuses what is of integers alone.

    Raises:
        BadOption: something is.
    """
    if activations is not None:
        raise BadOption(
            f"activations {check.shown(activations)} with format float8, whose own are float8",
            remedy="leave out activations, or use format int8",
        )
    if method not in FLOAT8_METHODS:
        raise BadOption(
            f"calibration {method} counts the equal steps of integers, which float8 does not have",
            remedy=f"use {', '.join(FLOAT8_METHODS)}",
        )
    vain = set(_remedies(remedies) or ()) - set(FLOAT8_REMEDIES)
    if vain:
        raise BadOption(
            f"remedies {', '.join(sorted(vain))} with format float8: they are for equal steps",
            remedy=f"use auto, none, or {', '.join(FLOAT8_REMEDIES)}",
        )


def all_quantized(require: Any) -> bool:
    """Whether ``require`` names the contract ``quantized``.

    Raises:
        BadOption: it names another.
    """
    wanted = check.names("require", require, '["quantized"]')
    for name in wanted:
        check.one_of("contract", name, CONTRACTS)
    return bool(wanted)


def _remedies(given: Any) -> tuple[str, ...] | None:
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, str) and given == "none":
        return ()
    names = check.names("remedies", given, '["bias-correction"]') if _listed(given) else [given]
    unknown = [name for name in names if name not in REMEDIES]
    if unknown:
        raise BadOption(
            f"unknown remedies {unknown}", remedy=f"use auto, none, or {', '.join(REMEDIES)}"
        )
    if {"gptq", "adaround"} <= set(names):
        raise BadOption("gptq and adaround both choose roundings", remedy="leave one of them out")
    return tuple(name for name in REMEDIES if name in names)


def _listed(given: Any) -> bool:
    return given is None or isinstance(given, str | Iterable)


def _share(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 50 <= value <= 100:
        raise BadOption(
            f"percentile is {check.shown(value)}", remedy="use a share of 50 .. 100, as 99.99"
        )
    return float(value)
