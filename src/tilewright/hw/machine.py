"""This machine's processors, caches and memory, as the operating system tells them.

Input -> Output: ``/proc`` and ``/sys`` -> ``Machine``.
Guarantees: counts only what this process may use; what the system does not tell is 0 or absent.
Not here: instruction sets (codegen.cpu.target), speeds (roofs).
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.hw.records import KIB, MIB

_PROC, _SYS = Path("/proc"), Path("/sys")
_LEAST_DRAM_BYTES = 256 * MIB
_SYSCONF = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A data cache.

    Attributes:
        level: 1 is the nearest.
        size_bytes: of one instance.
        shared_by: usable logical processors that share an instance.
    """

    level: int
    size_bytes: int
    shared_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer.

    Attributes:
        cpu: the processor's name.
        identity: vendor, family, model and stepping, or what there is of it.
        processors: numbers of the logical processors that this process may use, one of each core
            first.
        num_cores: cores that these belong to.
        caches: data caches, nearest first.
        memory_bytes: physical memory.
        is_virtual: whether a hypervisor announces itself.
        system: operating system and architecture.
    """

    cpu: str
    identity: str
    processors: tuple[int, ...]
    num_cores: int
    caches: tuple[Cache, ...]
    memory_bytes: int
    is_virtual: bool
    system: str

    def cache(self, number: int) -> Cache | None:
        """The data cache of a level."""
        return next((cache for cache in self.caches if cache.level == number), None)


def describe_machine(proc: Path = _PROC, sys: Path = _SYS) -> Machine:
    """What is known of this machine.

    Args:
        proc, sys: roots of the kernel's file systems.
    """
    facts = _cpu_facts(proc / "cpuinfo")
    usable = _usable_processors()
    cores = {number: _core_of(sys, number) for number in usable}
    ordered = _spread(usable, cores)
    parts = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part")
    return Machine(
        cpu=facts.get("model name") or platform.processor() or platform.machine(),
        identity=" ".join(f"{name} {facts[name]}" for name in parts if name in facts),
        processors=ordered,
        num_cores=len(set(cores.values())),
        caches=_caches(sys, ordered),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        is_virtual="hypervisor" in facts.get("flags", "").split(),
        system=f"{platform.system()} {platform.machine()}",
    )


def working_sets(machine: Machine, threads: int, dram_bytes: int | None = None) -> dict[str, int]:
    """Bytes of one thread that fit into each memory level and not into the nearer one.

    Args:
        machine: the computer.
        threads: that use memory at the same time, each its own.
        dram_bytes: of all threads together; by default four times the last caches.

    Returns:
        Sizes by level, nearest first, ``DRAM`` last; a cache is absent where a thread's share is
        less than twice its share of the nearer one.
    """
    sizes: dict[str, int] = {}
    nearer = 0
    for one in machine.caches:
        share = one.size_bytes // max(1, min(one.shared_by, threads))
        beyond = min(share // 2, max(4 * nearer, share // 8))
        size = share * 3 // 4 if one.level == 1 else beyond
        if size >= 2 * nearer:
            sizes[f"L{one.level}"] = size
        nearer = share
    last = machine.caches[-1] if machine.caches else Cache(level=0, size_bytes=0, shared_by=1)
    instances = -(-threads // last.shared_by)
    wanted = dram_bytes or max(4 * last.size_bytes * instances, _LEAST_DRAM_BYTES)
    sizes["DRAM"] = min(wanted, machine.memory_bytes // 8) // threads
    return sizes


@cache
def machine_identity() -> str:
    """Text that is equal where measured roofs may be reused."""
    machine = describe_machine()
    caches = ", ".join(f"L{c.level} {c.size_bytes}/{c.shared_by}" for c in machine.caches)
    return f"{machine.cpu}; {machine.identity}; {len(machine.processors)} processors; {caches}"


def _usable_processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _cpu_facts(path: Path) -> dict[str, str]:
    """The fields of the first processor."""
    facts: dict[str, str] = {}
    for line in _text(path).split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    return facts


def _core_of(sys: Path, processor: int) -> tuple[str, str]:
    """Package and core; a processor of its own where the system does not tell."""
    folder = sys / f"devices/system/cpu/cpu{processor}/topology"
    core = _text(folder / "core_id").strip()
    return (_text(folder / "physical_package_id").strip(), core or f"processor {processor}")


def _spread(usable: list[int], cores: dict[int, tuple[str, str]]) -> tuple[int, ...]:
    """Processors with the first of every core before the second of any."""
    seen: dict[tuple[str, str], int] = {}
    ranks: dict[int, int] = {}
    for number in usable:
        core = cores[number]
        ranks[number] = seen[core] = seen.get(core, -1) + 1
    return tuple(sorted(usable, key=lambda number: (ranks[number], number)))


def _caches(sys: Path, processors: tuple[int, ...]) -> tuple[Cache, ...]:
    found = []
    for folder in sorted((sys / f"devices/system/cpu/cpu{processors[0]}/cache").glob("index*")):
        size = _size(_text(folder / "size").strip())
        if _text(folder / "type").strip() == "Instruction" or not size:
            continue
        sharing = _processor_list(_text(folder / "shared_cpu_list").strip())
        shared_by = len(sharing.intersection(processors)) or 1
        level = int(_text(folder / "level").strip())
        found.append(Cache(level=level, size_bytes=size, shared_by=shared_by))
    return tuple(sorted(found, key=lambda cache: cache.level)) or _sysconf_caches()


def _sysconf_caches() -> tuple[Cache, ...]:
    """Sizes that the C library knows; it does not tell who shares."""
    names = {level: name for level, name in _SYSCONF.items() if name in os.sysconf_names}
    sizes = {level: os.sysconf(name) for level, name in names.items()}
    return tuple(
        Cache(level=level, size_bytes=size, shared_by=1)
        for level, size in sizes.items()
        if size > 0
    )


def _size(text: str) -> int:
    """``32K`` -> 32768; 0 for other text."""
    unit = {"K": KIB, "M": MIB}.get(text[-1:], 0)
    return int(text[:-1]) * unit if unit and text[:-1].isdigit() else 0


def _processor_list(text: str) -> set[int]:
    """``0-3,8`` -> {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
