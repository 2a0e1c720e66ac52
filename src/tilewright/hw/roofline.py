"""The roofline: the least time that work can take, and what sets it.

``Work`` and ``Roofs`` -> a bound per resource; the longest is the roof, its resource the limit.
Flat: one memory level, ``min(peak, intensity * bandwidth)``.  Hierarchical: every level that the
work states bytes for; the registers' roof is the peak itself.
Source: Williams, Waterman, Patterson, Roofline (CACM 2009); levels as in Ilic, Pratas,
Sousa, Cache-aware Roofline Model (2014).
Model: resources overlap perfectly, so that the longest one counts; types do too, which is exact for
one type and a lower bound for several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.core.errors import BadOption
from tilewright.hw.roofs import Level, Roofs

MEMORY = "DRAM"
READ = " read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a kernel does.

    Attributes:
        flops: operations by type; a multiply-add counts 2.
        num_bytes: bytes moved by memory level, in both directions.
        read_bytes: those of them that are fetched, where this direction shall have its own bound.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    num_bytes: Mapping[str, float] = field(default_factory=dict)
    read_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time of work under some roofs.

    Attributes:
        time_s: the longest of ``times_s``.
        limit: the resource that sets it: a memory level, reads of one, or a type's peak.
        times_s: time of each resource alone.
        intensity: operations a byte of the farthest level; infinite without bytes.
        flops_per_s: operations a second at the bound.
        source: of the roofs.
    """

    time_s: float
    limit: str
    times_s: Mapping[str, float]
    intensity: float
    flops_per_s: float
    source: str

    def fraction_of_roof(self, measured_s: float) -> float:
        """How close a measured time comes; 1 is the roof.

        Raises:
            BadOption: the time is not positive.
        """
        if measured_s <= 0:
            raise BadOption(f"a measured time of {measured_s} s", remedy="give a positive time")
        return self.time_s / measured_s


def bound(work: Work, roofs: Roofs) -> Bound:
    """The least time of work.

    Raises:
        BadOption: the roofs lack a type or a level that the work uses, or the work is empty.
    """
    times = {
        f"{dtype} peak": flops / peak_flops(roofs, dtype) for dtype, flops in work.flops.items()
    }
    for name, num_bytes in work.num_bytes.items():
        times[name] = num_bytes / level(roofs, name).bytes_per_s
    for name, num_bytes in work.read_bytes.items():
        times[f"{name}{READ}"] = num_bytes / level(roofs, name).read_bytes_per_s
    if not times or min(times.values()) < 0 or not math.isfinite(sum(times.values())):
        raise BadOption("work without operations and bytes", remedy="state one of them, positive")
    limit = max(times, key=lambda name: times[name])
    total = sum(work.flops.values())
    farthest = [one.name for one in roofs.levels if work.num_bytes.get(one.name)]
    return Bound(
        time_s=times[limit],
        limit=limit,
        times_s=times,
        intensity=total / work.num_bytes[farthest[-1]] if farthest else math.inf,
        flops_per_s=total / times[limit] if times[limit] else 0.0,
        source=roofs.source,
    )


def attainable_flops(roofs: Roofs, dtype: str, intensity: float, level_name: str = MEMORY) -> float:
    """FLOPs a second that an intensity (FLOPs a byte of that level) allows."""
    return min(peak_flops(roofs, dtype), intensity * level(roofs, level_name).bytes_per_s)


def ridge_intensity(roofs: Roofs, dtype: str, level_name: str = MEMORY) -> float:
    """FLOPs a byte of that level from which on the peak limits."""
    return peak_flops(roofs, dtype) / level(roofs, level_name).bytes_per_s


def peak_flops(roofs: Roofs, dtype: str) -> float:
    """The peak of a type; narrow types go by their family (``uint8`` by ``int8``).

    Raises:
        BadOption: the roofs do not have it.
    """
    for name in (dtype, peak_key(dtype)):
        if name in roofs.peaks_flops:
            return roofs.peaks_flops[name]
    raise BadOption(
        f"{roofs.device} has no known peak of {dtype}",
        remedy=f"use one of {', '.join(roofs.peaks_flops)}",
    )


def peak_key(dtype: str) -> str:
    """The name under which the peak of an element type is kept."""
    if dtype.startswith("float") and "_" in dtype:
        return dtype.partition("_")[0]
    return {"uint8": "int8", "uint4": "int4"}.get(dtype, dtype)


def level(roofs: Roofs, name: str) -> Level:
    """A memory level.

    Raises:
        BadOption: the roofs do not have it.
    """
    found = next((one for one in roofs.levels if one.name == name), None)
    if found is None:
        raise BadOption(
            f"{roofs.device} has no known memory level {name}",
            remedy=f"use one of {', '.join(one.name for one in roofs.levels)}",
        )
    return found
