"""The least time of a kernel on a device.

Input -> Output: roofs, what the caches hold, a call's bytes and operations -> a bound.
Method: the hierarchical roofline (hw.roofline). Bytes that cross a memory level are those that the
levels nearer to the registers cannot have kept: of a kernel's inputs and results what exceeds
their capacity, of the weights the share of the whole run's memory that exceeds it. What is fetched
and what is written back have their own wires between caches, so reads alone are bounded as well.
Guarantees: a lower bound for any caching policy, up to the accuracy of the roofs; operations of a
type without a known peak do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.core.errors import BadOption
from tilewright.core.plural import plural
from tilewright.hw.lookup import find_cpu
from tilewright.hw.machine import Machine, describe_machine
from tilewright.hw.records import Board
from tilewright.hw.roofline import READ, Bound, Work, bound, level, peak_flops, peak_key
from tilewright.hw.roofs import Level, Roofs, load_all_measured, roofs_of_board
from tilewright.hw.tables.cpu_isa import CPU_ISAS
from tilewright.report.explanation import RoofLevel, RoofModel

_WIDENED = {"float16": "float32", "bfloat16": "float32"}  # the CPU computes them so
MEASURED = "measured"
PEAK = " peak"
_MAX_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")  # kHz
_CPU_INFO = Path("/proc/cpuinfo")
_FAST_CLOCK_HZ = 6e9  # no processor of the tables is faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one call by kind."""

    weights: float
    reads: float
    writes: float

    @property
    def total(self) -> float:
        return self.weights + self.reads + self.writes

    def scaled(self, factor: float) -> Traffic:
        """So many times as many bytes."""
        parts = (self.weights, self.reads, self.writes)
        weights, reads, writes = (part * factor for part in parts)
        return Traffic(weights=weights, reads=reads, writes=writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """A device as far as bounds need it.

    Attributes:
        roofs: peaks and bandwidths.
        nearer_bytes: capacity of all levels nearer than each of the roofs' levels.
        footprint_bytes: memory that a whole run touches.
        note: empty, or how the roofs differ from what was asked for, and why to doubt them.
    """

    roofs: Roofs
    nearer_bytes: Mapping[str, float]
    footprint_bytes: float
    note: str = ""

    @property
    def model(self) -> RoofModel:
        """The record for reports."""
        return RoofModel(
            device=self.roofs.device,
            source=self.roofs.source,
            is_measured=self.roofs.source.startswith(MEASURED),
            peaks_flops=dict(self.roofs.peaks_flops),
            levels=tuple(
                RoofLevel(
                    name=one.name,
                    bytes_per_s=one.bytes_per_s,
                    read_bytes_per_s=one.read_bytes_per_s,
                    nearer_bytes=self.nearer_bytes[one.name],
                )
                for one in self.roofs.levels
                if one.name in self.nearer_bytes
            ),
        )

    def bound(
        self, flops: float, dtype: str, traffic: Traffic, *, widen: bool = True
    ) -> Bound | None:
        """The least time of one call; None where nothing bounds it.

        Args:
            widen: halves are computed as float32 where kernels do so today.
        """
        num_bytes: dict[str, float] = {}
        read_bytes: dict[str, float] = {}
        for name, nearer in self.nearer_bytes.items():
            fetched, written = self._crossing(traffic, nearer)
            if fetched + written > 0:
                num_bytes[name] = fetched + written
            there = level(self.roofs, name)
            if fetched > 0 and there.read_bytes_per_s < there.bytes_per_s:
                read_bytes[name] = fetched
        if widen and self.roofs.threads is not None:
            dtype = _WIDENED.get(dtype, dtype)
        work = Work(flops=self._flops(flops, dtype), num_bytes=num_bytes, read_bytes=read_bytes)
        return bound(work, self.roofs) if work.flops or work.num_bytes else None

    def raised(self, factors: Mapping[str, float]) -> Floors:
        """Floors with higher roofs.

        Args:
            factors: by limit, as ``Bound`` names it: how many times as high.
        """
        peaks = dict(self.roofs.peaks_flops)
        for limit, factor in factors.items():
            name = limit.removesuffix(PEAK)
            if name != limit:
                name = name if name in peaks else peak_key(name)
                peaks[name] *= factor
        levels = tuple(_raised(one, factors) for one in self.roofs.levels)
        source = f"{self.roofs.source}, raised where kernels were faster"
        roofs = replace(self.roofs, peaks_flops=peaks, levels=levels, source=source)
        return replace(self, roofs=roofs)

    def rate_of(self, limit: str) -> float:
        """Operations or bytes a second of a limit."""
        name = limit.removesuffix(PEAK)
        if name != limit:
            return peak_flops(self.roofs, name)
        there = level(self.roofs, limit.removesuffix(READ))
        return there.read_bytes_per_s if limit.endswith(READ) else there.bytes_per_s

    def _flops(self, flops: float, dtype: str) -> dict[str, float]:
        try:
            peak_flops(self.roofs, dtype)
        except BadOption:
            return {}
        return {dtype: flops} if flops else {}

    def _crossing(self, traffic: Traffic, nearer: float) -> tuple[float, float]:
        """Bytes that a level must give, and take."""
        lost = max(0.0, 1.0 - nearer / self.footprint_bytes) if self.footprint_bytes else 0.0
        weights = traffic.weights * (lost if nearer else 1.0)
        return weights + max(0.0, traffic.reads - nearer), max(0.0, traffic.writes - nearer)

    def move_us(self, num_bytes: float, *, written: bool) -> float | None:
        """The least time to read a buffer from the nearest level that can hold it.

        Args:
            num_bytes: of the buffer.
            written: whether it has to get there as well.
        """
        for one in reversed(self.roofs.levels):
            nearer = self.nearer_bytes.get(one.name)
            if nearer is not None and num_bytes > nearer:
                both = 2 * num_bytes / one.bytes_per_s if written else 0.0
                return max(num_bytes / one.read_bytes_per_s, both) * 1e6
        return None


def _raised(one: Level, factors: Mapping[str, float]) -> Level:
    """A level as fast as it was seen to be; no direction is faster than both together."""
    read = one.read_bytes_per_s * factors.get(f"{one.name}{READ}", 1.0)
    rate = max(one.bytes_per_s * factors.get(one.name, 1.0), read)
    return replace(one, bytes_per_s=rate, patterns={**one.patterns, "read": read})


def cpu_floors(cpu: str, threads: int, footprint_bytes: float) -> Floors:
    """Floors of this machine: by its measured roofs, else by the tables at its highest clock.

    Args:
        cpu: LLVM's name of the processor, for the tables.
        threads: of a run; roofs of another number are scaled, and the result says so.
        footprint_bytes: memory that a whole run touches.

    Returns:
        Never nothing: a processor that is in no table counts as the best one of them.
    """
    measured = load_all_measured()
    if not measured:
        return _table_floors(cpu, threads, footprint_bytes)
    chosen = min(measured, key=lambda one: abs((one.threads or 1) - threads))
    factor, note = threads / (chosen.threads or 1), ""
    widened = max(1.0, factor)  # one thread may take more than its share of what several share
    if factor != 1:
        note = f"roofs were measured with {plural(chosen.threads or 1, 'thread')} "
        note += f"and scaled to {threads}"
    note = "; ".join(part for part in (note, chosen.doubt) if part)
    levels = tuple(one.scaled(widened) for one in chosen.levels)
    peaks = {name: peak * factor for name, peak in chosen.peaks_flops.items()}
    roofs = replace(chosen, threads=threads, levels=levels, peaks_flops=peaks)
    return Floors(
        roofs=roofs,
        nearer_bytes=_nearer(describe_machine(), threads, levels),
        footprint_bytes=footprint_bytes,
        note=note,
    )


def _table_floors(cpu: str, threads: int, footprint_bytes: float) -> Floors:
    isa = find_cpu(cpu)
    clock_hz, whose = _clock()
    rate = clock_hz * threads
    if isa is not None:
        per_cycle, title, source = isa.flops_per_cycle, isa.title, isa.source
        l1_bytes = float(isa.load_bytes_per_cycle + isa.store_bytes_per_cycle)
    else:
        per_cycle, title = {}, f"{cpu or 'a processor'} as the best one of the tables"
        source = "no document of this processor is known"
        for known in CPU_ISAS:
            for dtype, flops in known.flops_per_cycle.items():
                per_cycle[dtype] = max(flops, per_cycle.get(dtype, 0.0))
        l1_bytes = max(
            float(known.load_bytes_per_cycle + known.store_bytes_per_cycle) for known in CPU_ISAS
        )
    roofs = Roofs(
        device=title,
        threads=threads,
        peaks_flops={dtype: flops * rate for dtype, flops in per_cycle.items()},
        levels=(Level(name="L1", bytes_per_s=l1_bytes * rate),),
        source=f"tables at {clock_hz / 1e9:.2f} GHz ({whose}): {source}",
        clock_hz=clock_hz,
    )
    return Floors(
        roofs=roofs,
        nearer_bytes={"L1": 0.0},
        footprint_bytes=footprint_bytes,
        note="the roofs come from tables, not from this machine, and know no memory beyond L1: "
        "`tilewright device --probe` measures them once",
    )


def _clock() -> tuple[float, str]:
    """The highest clock that the system tells, and how it is known."""
    try:
        return float(_MAX_CLOCK.read_text()) * 1e3, "the system's highest clock"
    except (OSError, ValueError):
        pass
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    clocks = [line.partition(":")[2].strip() for line in lines if line.startswith("cpu MHz")]
    found = [float(clock) for clock in clocks if clock.replace(".", "", 1).isdecimal()]
    if found and max(found) > 0:
        return max(found) * 1e6, "the clock as it is now"
    return _FAST_CLOCK_HZ, "assumed"


def board_floors(board: Board, footprint_bytes: float) -> Floors:
    """Floors by what the documents of a GPU state: peaks, DRAM, the size of its L2."""
    roofs = roofs_of_board(board)
    levels = tuple(level for level in roofs.levels if level.name == "DRAM")
    return Floors(
        roofs=replace(roofs, levels=levels),
        nearer_bytes={"DRAM": float(board.l2_bytes or 0)},
        footprint_bytes=footprint_bytes,
    )


def _nearer(machine: Machine, threads: int, levels: tuple[Level, ...]) -> dict[str, float]:
    """All caches nearer than each level together, as some of them exclude each other."""
    result: dict[str, float] = {}
    total = 0.0
    for number, one in enumerate(levels, start=1):
        result[one.name] = total
        cache = machine.cache(number)
        if cache is not None:
            total += cache.size_bytes * -(-threads // max(1, cache.shared_by))
    return result
