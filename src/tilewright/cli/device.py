"""``tilewright device``: this machine and its roofs, a GPU's limits, occupancy, block sizes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import console
from tilewright.cli.options import Json, parse_counts, refuse_unused
from tilewright.core.errors import CacheError

if TYPE_CHECKING:
    from tilewright.hw.cuda_driver import Gpu
    from tilewright.hw.occupancy import BlockResources
    from tilewright.hw.records import Board, CudaArch
    from tilewright.hw.roofs import Roofs

_UNITS = {"": 1, "b": 1, "k": 1024, "kb": 1024, "kib": 1024, "m": 1 << 20, "mib": 1 << 20}
_SECONDS = 20.0
_KEYS = ("regs", "smem", "block", "barriers", "threads", "smem_per_thread", "carveout")


def show_device(
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure the roofs of this machine and keep them.")
    ] = False,
    threads: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="With --probe: 1,2; by default 1 and all."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=600, metavar="S", help="With --probe: time to aim for, by default 20."
        ),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(metavar="NAME", help="A CUDA architecture, such as sm_90.")
    ] = None,
    board: Annotated[
        str | None, typer.Option(metavar="NAME", help="A GPU by name, such as H200.")
    ] = None,
    occupancy: Annotated[
        str | None,
        typer.Option(
            metavar="RESOURCES",
            help="Occupancy of a block, for example regs=64,smem=48KiB,block=256; further keys: "
            "barriers, carveout, threads (of the launch), smem_per_thread (with --advise).",
        ),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="With --occupancy: compare all block sizes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show this machine and its roofs, a GPU's limits, or the occupancy of a kernel."""
    counts = tuple(parse_counts(threads)) if threads else ()
    request = parse_request(occupancy) if occupancy is not None else None
    refuse_unused(
        (threads is not None and not probe, "--threads", "only --probe measures"),
        (seconds is not None and not probe, "--seconds", "only --probe measures"),
        *_unused_keys(request, advise=advise, has_sms=arch is None or board is not None),
    )
    if advise and request is None:
        raise typer.BadParameter("--advise needs --occupancy regs=...,smem=...")
    if probe and (arch or board or request):
        raise typer.BadParameter("--probe measures this machine: leave out the other questions")
    if request is not None:
        _occupancy(request, find_device(arch, board), advise=advise, as_json=as_json)
    elif arch or board:
        _limits(find_device(arch, board), as_json=as_json)
    else:
        _machine(probe, counts, seconds or _SECONDS, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What ``--occupancy`` asks about; sizes in bytes."""

    regs: int = 32
    smem: int = 0
    block: int | None = None
    barriers: int = 1
    threads: int | None = None
    smem_per_thread: int = 0
    carveout: int | None = None

    def resources(self) -> "BlockResources":
        """The block; one warp where none was named, for advice."""
        from tilewright.hw.occupancy import BlockResources

        return BlockResources(
            threads=32 if self.block is None else self.block,
            registers=self.regs,
            shared_bytes=self.smem,
            barriers=self.barriers,
        )


def _unused_keys(
    request: Request | None, *, advise: bool, has_sms: bool
) -> list[tuple[bool, str, str]]:
    """Keys of ``--occupancy`` that say nothing beside ``--advise``, or without it."""
    if request is None:
        return []
    return [
        (advise and request.block is not None, "block", "--advise compares all sizes"),
        (advise and request.carveout is not None, "carveout", "--advise does not take one"),
        (not advise and request.smem_per_thread > 0, "smem_per_thread", "it is for --advise"),
        (request.threads is not None and not has_sms, "threads", "--arch has no number of SMs"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a question is about; ``num_sms`` is None where only an architecture was named."""

    arch: "CudaArch"
    board: "Board | None"
    num_sms: int | None


def parse_request(text: str) -> Request:
    """Parses ``regs=64,smem=48KiB,block=256``."""
    numbers: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.lower())
        if name not in _KEYS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(_KEYS)}")
        if name in numbers:
            raise typer.BadParameter(f"{name} is given twice")
        if match is None or match[2] not in _UNITS:
            raise typer.BadParameter(f"{part.strip()!r}: give a number, for example smem=48KiB")
        number = float(match[1]) * _UNITS[match[2]]
        if number != int(number) or (match[2] and not name.startswith(("smem", "carveout"))):
            raise typer.BadParameter(f"{part.strip()!r} is not a whole number")
        numbers[name] = int(number)
    return Request(**numbers)


def find_device(arch: str | None, board: str | None) -> Device:
    """The architecture and board that were named, or those of this machine's first GPU.

    Raises:
        BadTarget: there are none of these names.
        BadOption: they contradict each other, or nothing was named and there is no GPU.
    """
    from tilewright.core.errors import BadOption
    from tilewright.hw.lookup import board_of_device, find_arch, find_board

    if board is not None:
        row = find_board(board)
        if arch is not None and find_arch(arch).name != row.arch:
            raise BadOption(f"{row.name} is {row.arch}, not {arch}", remedy="leave out --arch")
        return Device(arch=find_arch(row.arch), board=row, num_sms=row.num_sms)
    if arch is not None:
        return Device(arch=find_arch(arch), board=None, num_sms=None)
    gpus, reason = find_gpus()
    if not gpus:
        raise BadOption(reason, remedy="name one: --arch sm_90 or --board H200")
    gpu = gpus[0]
    return Device(
        arch=find_arch(f"{gpu.capability[0]}.{gpu.capability[1]}"),
        board=board_of_device(gpu.name, gpu.num_sms),
        num_sms=gpu.num_sms,
    )


def find_gpus() -> "tuple[Sequence[Gpu], str]":
    """The NVIDIA GPUs of this machine, and why there are none."""
    from tilewright.hw.cuda_driver import open_driver

    driver = open_driver()
    if isinstance(driver, str):
        return (), driver
    gpus = driver.gpus()
    return gpus, "" if gpus else "no NVIDIA GPU was found: the driver lists none"


def _occupancy(request: Request, device: Device, *, advise: bool, as_json: bool) -> None:
    from tilewright.cli import device_text as text
    from tilewright.hw.advice import advise_block_size, relief
    from tilewright.hw.occupancy import ceil_div, occupancy
    from tilewright.hw.waves import wave_quantisation

    if advise:
        advice = advise_block_size(
            device.arch,
            request.resources(),
            shared_bytes_per_thread=request.smem_per_thread,
            total_threads=request.threads,
            num_sms=device.num_sms,
        )
        if as_json:
            console.write_json({"arch": device.arch.name, **text.as_dict(advice)})
        else:
            text.show_advice(device.arch, advice)
        return
    if request.block is None:
        raise typer.BadParameter("--occupancy needs block=..., or --advise")
    block = request.resources()
    found = occupancy(device.arch, block, carveout_bytes=request.carveout)
    waves = None
    if request.threads and device.num_sms and found.blocks_per_sm:
        grid = ceil_div(request.threads, block.threads)
        waves = wave_quantisation(grid, device.num_sms, found.blocks_per_sm)
    hint = relief(device.arch, block.threads, found) if found.blocks_per_sm else ""
    if as_json:
        answer = {"arch": device.arch.name, "block": block, **text.as_dict(found)}
        console.write_json({**answer, "waves": waves, "hint": hint, "source": device.arch.source})
    else:
        text.show_occupancy(device.arch, block, found, waves, hint)


def _limits(device: Device, *, as_json: bool) -> None:
    from tilewright.cli import device_text as text
    from tilewright.hw.roofs import roofs_of_board

    roofs = roofs_of_board(device.board) if device.board else None
    if as_json:
        console.write_json({"arch": device.arch, "board": device.board, "roofs": roofs})
    else:
        text.show_limits(device.arch, device.board, roofs)


def _machine(probe: bool, counts: tuple[int, ...], seconds: float, *, as_json: bool) -> None:
    from tilewright.cli import device_text as text
    from tilewright.codegen.cpu.target import host_target
    from tilewright.hw.lookup import find_cpu
    from tilewright.hw.machine import describe_machine
    from tilewright.hw.roofs import load_all_measured

    gpus, no_gpu = find_gpus()
    lost = _probe(counts, seconds, gpus) if probe else []
    machine, target = describe_machine(), host_target()
    isa, roofs = find_cpu(target.name), load_all_measured()
    gpu_roofs = {gpu.name: load_all_measured(gpu.name) for gpu in gpus}
    if as_json:
        console.write_json(
            {
                "machine": machine,
                "target": target,
                "isa": isa,
                "roofs": roofs,
                "gpus": gpus,
                "gpu_roofs": gpu_roofs,
                "no_gpu": no_gpu,
            }
        )
    else:
        text.show_machine(machine, target.name, isa, roofs)
        text.show_gpus(gpus, gpu_roofs, no_gpu)
    for error in lost:
        console.log(f"error: {error}")
    if lost:
        raise typer.Exit(1)


def _known_roofs() -> "tuple[Roofs, ...]":
    """What was measured before; nothing where that cannot be read, which measuring mends."""
    from tilewright.hw.roofs import load_all_measured

    try:
        return load_all_measured()
    except CacheError:
        return ()


def _probe(counts: tuple[int, ...], seconds: float, gpus: "Sequence[Gpu]") -> list[CacheError]:
    """Measures everything; returns why results could not be kept."""
    from tilewright.codegen.cpu.probe import ProbeOptions, probe_cpu
    from tilewright.hw.cuda_driver import CudaDriver, open_driver
    from tilewright.hw.gpu_probe import probe_gpu
    from tilewright.hw.roofs import store_measured, with_earlier

    def keep(measured: "tuple[Roofs, ...]", gpu: str | None = None) -> None:
        try:
            console.log(f"kept in {store_measured(measured, gpu)}")
        except CacheError as error:
            lost.append(error)  # what was measured is shown all the same

    lost: list[CacheError] = []
    measured: tuple[Roofs, ...] = probe_cpu(
        ProbeOptions(threads=counts, seconds=seconds), console.log
    )
    measured, reasons = with_earlier(measured, _known_roofs())
    keep(measured)
    for reason in reasons:
        console.log(reason)
    for doubt in dict.fromkeys(roofs.doubt for roofs in measured if roofs.doubt):
        console.log(doubt)
    driver = open_driver()
    if isinstance(driver, CudaDriver):
        for gpu in gpus:
            console.log(f"measuring {gpu.name}")
            keep((probe_gpu(driver, gpu),), gpu.name)
    return lost
