"""Text of ``tilewright device``: tables of a machine, of limits, of occupancy and of advice."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from tilewright.cli import console
from tilewright.core.plural import plural
from tilewright.hw.records import GB, KIB, MIB

if TYPE_CHECKING:
    from tilewright.hw.advice import Advice
    from tilewright.hw.cuda_driver import Gpu
    from tilewright.hw.machine import Machine
    from tilewright.hw.occupancy import BlockResources, Occupancy
    from tilewright.hw.records import Board, CpuIsa, CudaArch
    from tilewright.hw.roofs import Roofs
    from tilewright.hw.waves import Waves

NOT_MEASURED = "roofs: not measured; tilewright device --probe does it"
_WIDTH = 22


def as_dict(record: object) -> dict[str, object]:
    """The fields of a record, one level deep."""
    return {f.name: getattr(record, f.name) for f in fields(record)}  # type: ignore[arg-type]


def _line(name: str, value: object) -> None:
    console.write(f"{name:<{_WIDTH}} {value}")


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def size(num_bytes: float) -> str:
    """``32 KiB``, ``1.5 MiB``; bytes below 1 KiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.4g} {name}"
    return f"{num_bytes:.0f} bytes"


def rate(per_second: float, unit: str) -> str:
    """``117.3 GFLOP/s``, ``989.4 TFLOP/s``."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if per_second >= scale:
            return f"{per_second / scale:.4g} {prefix}{unit}/s"
    return f"{per_second:.4g} {unit}/s"


def _operations(dtype: str) -> str:
    return "OP" if dtype.startswith(("int", "uint")) else "FLOP"


# --- this machine ---------------------------------------------------------------------------------


def show_machine(
    machine: "Machine", target: str, isa: "CpuIsa | None", roofs: "Sequence[Roofs]"
) -> None:
    """The processor, its caches, and its roofs if they were measured."""
    _line("processor", f"{machine.cpu} ({target}{', virtual' if machine.is_virtual else ''})")
    _line("usable", f"{len(machine.processors)} processors on {machine.num_cores} cores")
    for cache in machine.caches:
        shared = f", shared by {cache.shared_by}" if cache.shared_by > 1 else ""
        _line(f"L{cache.level}", f"{size(cache.size_bytes)}{shared}")
    _line("memory", f"{machine.memory_bytes / (1 << 30):.1f} GiB")
    if isa is not None:
        _line("per cycle and core", _rates(isa.flops_per_cycle))
        _line("  source", isa.source)
        if isa.note:
            _line("  note", isa.note)
    if not roofs:
        console.write(NOT_MEASURED)
        return
    show_peaks(roofs, isa)
    show_levels(roofs)


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{dtype} {number:g}" for dtype, number in rates.items()) or "not published"


def show_peaks(roofs: "Sequence[Roofs]", isa: "CpuIsa | None") -> None:
    """Measured peaks, also a cycle of one core, beside what the documents state of that."""
    table = _table(f"Peaks, {roofs[-1].source}")
    table.add_column("type")
    for one in roofs:
        table.add_column(plural(one.threads or 1, "thread"), justify="right", no_wrap=True)
    for name in ("per cycle", "stated"):
        table.add_column(name, justify="right")
    table.add_column("instruction", no_wrap=True)
    stated = {unit.dtype: unit for unit in isa.units} if isa else {}
    for dtype, instruction in roofs[-1].instructions.items():
        first = roofs[0]
        cycles = (first.clock_hz or 0.0) * (first.threads or 1)
        each = first.peaks_flops[dtype] / cycles if cycles else 0.0
        document = f"{stated[dtype].flops_per_cycle:g}" if dtype in stated else ""
        peaks = [rate(one.peaks_flops[dtype], _operations(dtype)) for one in roofs]
        table.add_row(dtype, *peaks, f"{each:.1f}", document, instruction)
    console.show(table)


def show_levels(roofs: "Sequence[Roofs]") -> None:
    """Measured bandwidths, fork and join, and remarks."""
    table = _table(f"Memory, {roofs[-1].source}")
    table.add_column("level")
    table.add_column("access")
    for one in roofs:
        table.add_column(plural(one.threads or 1, "thread"), justify="right", no_wrap=True)
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for number, one in enumerate(roofs):
        for level in one.levels:
            for pattern, bandwidth in level.patterns.items():
                rows.setdefault((level.name, pattern), {})[number] = bandwidth
    for (name, pattern), found in rows.items():
        cells = [rate(found[n], "B") if n in found else "" for n in range(len(roofs))]
        table.add_row(name, pattern, *cells)
    console.show(table)
    for one in roofs:
        text = [f"clock {one.clock_hz / 1e9:.2f} GHz"] if one.clock_hz else []
        text += [f"fork and join {one.costs[key]:.2f} us" for key in one.costs if "fork" in key]
        _line(plural(one.threads or 1, "thread"), "; ".join([*text, *one.notes]))
        if one.doubt:
            _line("  note", one.doubt)


def show_gpus(gpus: "Sequence[Gpu]", roofs: "Mapping[str, Sequence[Roofs]]", no_gpu: str) -> None:
    """The GPUs of this machine, or why there are none."""
    if not gpus:
        console.write(no_gpu)
    for gpu in gpus:
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
        text = f"{gpu.name}, compute capability {capability}, {gpu.num_sms} SMs, {gpu.driver}"
        _line(f"GPU {gpu.index}", text)
        _line("  memory", f"{size(gpu.memory_bytes)}, L2 {size(gpu.l2_bytes)}")
        if not roofs[gpu.name]:
            console.write(f"  {NOT_MEASURED}")
        for one in roofs[gpu.name]:
            show_roofs(one)


# --- limits ---------------------------------------------------------------------------------------


def show_limits(arch: "CudaArch", board: "Board | None", roofs: "Roofs | None") -> None:
    """What an architecture allows, and what a board has of it."""
    capability = f"{arch.capability[0]}.{arch.capability[1]}"
    _line("architecture", f"{arch.name}, {arch.generation}, compute capability {capability}")
    threads = f"{arch.max_threads_per_sm} threads, {arch.max_warps_per_sm} warps"
    _line(
        "per SM", f"{threads}, {arch.max_blocks_per_sm} blocks, {arch.registers_per_sm} registers"
    )
    _line(
        "per block", f"{arch.max_threads_per_block} threads, {arch.registers_per_block} registers"
    )
    _line("per thread", f"{arch.max_registers_per_thread} registers")
    _line("shared memory", f"{size(arch.shared_bytes_per_sm)} per SM")
    _line("", f"{size(arch.max_shared_bytes_per_block)} per block, above 48 KiB after opting in")
    _line("", f"{size(arch.reserved_shared_bytes_per_block)} more per block for the driver")
    carveouts = ", ".join(f"{carveout // KIB}" for carveout in arch.carveouts_bytes)
    _line("carve-outs", f"{carveouts} KiB of {size(arch.unified_cache_bytes)} L1 and shared memory")
    _line("units", f"{arch.register_unit} registers per warp, {arch.shared_unit_bytes} bytes")
    _line("barriers", f"{arch.barriers_per_sm} per SM, {arch.max_barriers_per_block} per block")
    _line("FLOP/clk/SM", f"CUDA cores: {_rates(arch.vector_flops_per_clk)}")
    _line("", f"tensor cores, dense: {_rates(arch.tensor_flops_per_clk)}")
    _line("source", arch.source)
    _line("source of rates", arch.rates_source or "none published")
    if arch.note:
        _line("note", arch.note)
    if board is not None and roofs is not None:
        _line("board", f"{board.name}, {board.num_sms} SMs, {board.clock_hz / 1e6:.0f} MHz boost")
        cache = f", L2 {size(board.l2_bytes)}" if board.l2_bytes else ""
        _line("memory", f"{board.memory_bytes / GB:g} GB{cache}")
        show_roofs(roofs)


def show_roofs(roofs: "Roofs") -> None:
    """Peaks with the intensity from which on they limit, levels, and other costs of a GPU."""
    memory = roofs.levels[-1]
    table = _table(f"Roofs of {roofs.device}")
    table.add_column("roof")
    table.add_column("at most", justify="right")
    table.add_column(f"ridge, FLOP/byte of {memory.name}", justify="right")
    for dtype, peak in sorted(roofs.peaks_flops.items(), key=lambda item: item[1]):
        ridge = f"{peak / memory.bytes_per_s:.1f}"
        table.add_row(dtype, rate(peak, _operations(dtype)), ridge)
    for level in roofs.levels:
        table.add_row(level.name, rate(level.bytes_per_s, "B"), "")
        for pattern, bandwidth in level.patterns.items():
            table.add_row(f"  {pattern}", rate(bandwidth, "B"), "")
    console.show(table)
    _line("source of roofs", roofs.source)
    for name, cost in roofs.costs.items():
        _line(name, f"{cost:.4g}")
    for note in roofs.notes:
        _line("note", note)


# --- occupancy ------------------------------------------------------------------------------------


def show_occupancy(
    arch: "CudaArch",
    block: "BlockResources",
    found: "Occupancy",
    waves: "Waves | None",
    hint: str,
) -> None:
    """What an SM holds, which resource decides it, and what would help."""
    _line("architecture", f"{arch.name} ({arch.generation})")
    shared = size(block.shared_bytes)
    _line("block", f"{block.threads} threads, {block.registers} registers, {shared} shared memory")
    if found.refusal:
        _line("cannot run", found.refusal)
        return
    _line("blocks per SM", found.blocks_per_sm)
    warps = f"{found.warps_per_sm} of {arch.max_warps_per_sm} ({found.fraction:.0%})"
    _line("warps per SM", warps)
    _line("limited by", ", ".join(found.limited_by))
    for name, limit in found.limits.items():
        _line(f"  {name}", f"{limit} blocks")
    allocated = f"{found.registers_per_block} registers, {size(found.shared_bytes_per_block)}"
    _line("allocated per block", f"{allocated} of shared memory, the driver's reserve included")
    least, chosen = size(found.least_carveout_bytes), size(found.carveout_bytes)
    _line("carve-out", f"{chosen} assumed, {least} is enough")
    if found.needs_opt_in:
        _line("note", "more than 48 KiB: raise cudaFuncAttributeMaxDynamicSharedMemorySize")
    if hint:
        _line("for more", hint)
    if waves is not None:
        text = f"{waves.num_blocks} blocks in {waves.waves:.2f} waves of {waves.slots}"
        _line("waves", f"{text}: {waves.efficiency:.1%} of the slots are used")
        if waves.tail_blocks:
            _line("last wave", f"{waves.tail_blocks} blocks on at most {waves.busy_sms} SMs")
    _line("source", arch.source)


def show_advice(arch: "CudaArch", advice: "Advice") -> None:
    """All block sizes, the best one marked."""
    table = _table(f"Block sizes on {arch.name}")
    table.add_column("")
    for title in ("threads", "blocks", "warps", "occupancy", "waves", "used"):
        table.add_column(title, justify="right")
    table.add_column("limited by", no_wrap=True)
    for one in advice.candidates:
        found, waves = one.occupancy, one.waves
        table.add_row(
            "*" if one.threads == advice.best else "",
            str(one.threads),
            str(found.blocks_per_sm),
            str(found.warps_per_sm),
            f"{found.fraction:.0%}",
            "" if waves is None else f"{waves.waves:.2f}",
            "" if waves is None else f"{waves.efficiency:.0%}",
            found.refusal or ", ".join(found.limited_by),
        )
    console.show(table)
    _line("best", advice.best if advice.best is not None else "none can run")
    _line("because", advice.reason)
    if advice.hint:
        _line("for more", advice.hint)
