"""Roofs of a device: the peak of each type and the bandwidth of each memory level.

Input -> Output: a board of the tables -> its stated roofs; a measurement -> a JSON file in the
user's cache folder, keyed by the device; that file -> the roofs again.
Guarantees: ``source`` says where the numbers come from, so that a report can; a damaged file is an
error with the remedy, a missing one is None.
Not here: measuring (codegen.cpu.probe, hw.gpu_probe), formulas (roofline).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.core.cache_folder import cache_folder
from tilewright.core.errors import CacheError
from tilewright.core.plural import plural
from tilewright.core.whole_file import whole_files
from tilewright.hw.lookup import find_arch
from tilewright.hw.machine import machine_identity
from tilewright.hw.records import Board

_FORMAT = 2  # 1 had no updates in place
_SHARED_BYTES_PER_BANK = 4
QUIET = 0.5  # of a measurement: with less undisturbed its roofs may be too low
_UNDISTURBED = re.compile(r"(\d+)% of \d+ batches were undisturbed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the memory hierarchy.

    Attributes:
        name: ``L1``, ``L2``, ``L3``, ``DRAM``, ``shared memory``.
        bytes_per_s: the highest of the patterns.
        patterns: bytes a second by access pattern (``read``, ``triad`` ...), if measured.
        working_set_bytes: of one thread, that it was measured with.
    """

    name: str
    bytes_per_s: float
    patterns: Mapping[str, float] = field(default_factory=dict)
    working_set_bytes: int | None = None

    @property
    def read_bytes_per_s(self) -> float:
        """How fast bytes can be fetched, while others may be written back at the same time."""
        return min(self.bytes_per_s, self.patterns.get("read", self.bytes_per_s))

    def scaled(self, factor: float) -> Level:
        """The same level with all rates that many times as high."""
        patterns = {name: rate * factor for name, rate in self.patterns.items()}
        return replace(self, bytes_per_s=self.bytes_per_s * factor, patterns=patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """What a device can do at most.

    Attributes:
        device: its name.
        threads: CPU threads that these roofs hold for; None for a GPU.
        peaks_flops: FLOPs (or integer operations) a second by type; a multiply-add counts 2.
        levels: memory levels, the nearest first.
        source: ``measured`` with the date, or the documents.
        clock_hz: clock seen while measuring, or of the documents.
        instructions: what a peak was reached with, by type.
        costs: times and rates of other things; the unit is the end of the name.
        notes: what was not measured, and how quiet the machine was.
        undisturbed: the part of the measurement that no other program disturbed, if it is known.
    """

    device: str
    threads: int | None
    peaks_flops: Mapping[str, float]
    levels: tuple[Level, ...]
    source: str
    clock_hz: float | None = None
    instructions: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    undisturbed: float | None = None

    @property
    def doubt(self) -> str:
        """Why these roofs may be too low; empty where nothing says so."""
        if self.undisturbed is None or self.undisturbed >= QUIET:
            return ""
        return (
            f"the roofs were measured while the machine was busy ({self.undisturbed:.0%} of the "
            "batches were undisturbed) and may be too low: run `tilewright device --probe` again"
        )


def roofs_of_board(board: Board) -> Roofs:
    """The roofs that the documents of a board state; of each type the faster kind of core's."""
    arch = find_arch(board.arch)
    peaks = {
        dtype: rate * board.num_sms * board.clock_hz
        for dtype, rate in arch.vector_flops_per_clk.items()
    }
    for dtype, rate in arch.tensor_flops_per_clk.items():
        # Datasheets state double precision at the clock of the CUDA cores.
        clock_hz = board.clock_hz if dtype == "float64" else board.tensor_clock_hz
        scaled = rate * board.tensor_scale.get(dtype, 1.0) * board.num_sms * clock_hz
        peaks[dtype] = max(peaks.get(dtype, 0.0), scaled)
    shared = arch.shared_banks * _SHARED_BYTES_PER_BANK * board.num_sms * board.clock_hz
    return Roofs(
        device=board.name,
        threads=None,
        peaks_flops=peaks,
        levels=(
            Level(name="shared memory", bytes_per_s=shared),
            Level(name="DRAM", bytes_per_s=board.memory_bytes_per_s),
        ),
        source=f"{board.source}; rates: {arch.rates_source or 'none published'}",
        clock_hz=board.clock_hz,
    )


# --- measured roofs -------------------------------------------------------------------------------


_unsaved: dict[Path, tuple[Roofs, ...]] = {}  # of this process, where nothing can be written


def store_measured(roofs: Sequence[Roofs], gpu: str | None = None) -> Path:
    """Writes measured roofs of this machine's CPU, or of a GPU, and returns the file.

    Raises:
        CacheError: the folder cannot be written; this process knows the roofs all the same.
    """
    path = _path(gpu)
    text = json.dumps({"format": _FORMAT, "roofs": [asdict(one) for one in roofs]}, indent=2)
    _unsaved[path] = tuple(roofs)
    try:
        with whole_files(path.parent) as folder:
            (folder / path.name).write_text(text + "\n", encoding="utf-8")
    except CacheError as error:
        raise CacheError(
            f"measured roofs cannot be kept: {error.message}",
            file=error.file,
            remedy="set TILEWRIGHT_CACHE to a writable folder",
        ) from error
    del _unsaved[path]
    return path


def with_earlier(
    measured: Sequence[Roofs], before: Sequence[Roofs]
) -> tuple[tuple[Roofs, ...], tuple[str, ...]]:
    """The roofs to keep after a measurement, and why an earlier one stays.

    A new one replaces that of as many threads, unless the machine was busy this time and more so
    than then: other programs only make things slower.
    """
    earlier = {one.threads: one for one in before}
    kept, reasons = dict(earlier), []
    for new in measured:
        old = earlier.get(new.threads)
        now, then = new.undisturbed, None if old is None else old.undisturbed
        if new.doubt and now is not None and then is not None and then > now:
            count = "the device" if new.threads is None else plural(new.threads, "thread")
            reasons.append(
                f"the earlier roofs of {count} are kept: the machine was busier now ({now:.0%} of "
                f"the batches were undisturbed, {then:.0%} then)"
            )
        else:
            kept[new.threads] = new
    return tuple(sorted(kept.values(), key=lambda one: one.threads or 0)), tuple(reasons)


def load_all_measured(gpu: str | None = None) -> tuple[Roofs, ...]:
    """All that was measured on this machine's CPU, or a GPU; empty before the first probe.

    Raises:
        CacheError: the file is damaged.
    """
    path = _path(gpu)
    if path in _unsaved:
        return _unsaved[path]
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ()  # a folder that cannot be used holds nothing
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:  # written by another version: as if never measured
            return ()
        return tuple(_read(one) for one in content["roofs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, repr(error)) from error


def load_measured(threads: int | None = None, *, gpu: str | None = None) -> Roofs | None:
    """The measured roofs of this machine for a number of threads, or of a GPU.

    Args:
        threads: by default the most that were measured.
        gpu: name of a GPU, as its driver gives it.

    Returns:
        None where exactly that was not measured (``tilewright device --probe`` does it).

    Raises:
        CacheError: the file is damaged.
    """
    found = load_all_measured(gpu)
    if threads is not None:
        found = tuple(one for one in found if one.threads == threads)
    return max(found, key=lambda one: one.threads or 0, default=None)


def _path(gpu: str | None) -> Path:
    if gpu is not None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", gpu).strip("-")
        return cache_folder() / "roofs" / f"gpu-{name}.json"
    digest = hashlib.sha256(machine_identity().encode()).hexdigest()
    return cache_folder() / "roofs" / f"cpu-{digest[:16]}.json"


def _damaged(path: Path, reason: str) -> CacheError:
    return CacheError(
        f"measured roofs cannot be read: {reason}",
        file=str(path),
        remedy="measure again: tilewright device --probe",
    )


def _read(content: Mapping[str, Any]) -> Roofs:
    threads, clock = content["threads"], content["clock_hz"]
    undisturbed = content.get("undisturbed", _undisturbed(content["notes"]))
    return Roofs(
        device=str(content["device"]),
        threads=None if threads is None else int(threads),
        peaks_flops=_positive(content["peaks_flops"]),
        levels=tuple(_read_level(level) for level in content["levels"]),
        source=str(content["source"]),
        clock_hz=None if clock is None else float(clock),
        instructions={str(key): str(value) for key, value in content["instructions"].items()},
        costs=_positive(content["costs"]),
        notes=tuple(str(note) for note in content["notes"]),
        undisturbed=None if undisturbed is None else float(undisturbed),
    )


def _undisturbed(notes: Sequence[str]) -> float | None:
    """What a file says in words only."""
    found = [match for note in notes if (match := _UNDISTURBED.match(str(note)))]
    return int(found[-1][1]) / 100 if found else None


def _read_level(content: Mapping[str, Any]) -> Level:
    size = content["working_set_bytes"]
    return Level(
        name=str(content["name"]),
        bytes_per_s=_positive({"bytes_per_s": content["bytes_per_s"]})["bytes_per_s"],
        patterns=_positive(content["patterns"]),
        working_set_bytes=None if size is None else int(size),
    )


def _positive(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Numbers that can be divided by.

    Raises:
        ValueError: one is not finite and positive.
    """
    found = {str(name): float(number) for name, number in numbers.items()}
    for name, number in found.items():
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name} is {number}")
    return found
