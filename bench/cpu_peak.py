"""How near each matrix product and convolution of a network comes to the roofs of its processor.

    python bench/cpu_peak.py OUT.json MODEL.onnx .. [--cpu haswell] [--runs 40] [--show 12]

Engines are built for that processor and one thread, and run with the inputs of the ``.npz`` beside
the model. Every stage is timed inside whole runs; its least time counts, with all that it computes
after the sum. ``fma_percent`` is of a loop of multiply-adds in the target's vectors, measured
between the runs; ``fma_percent_with_epilogue`` counts what follows the sums as well, as long as it
holds the multipliers; ``memory_percent`` is of reading all its buffers once: from the nearest
memory that holds them, weights from the nearest that holds the model's (``level`` is where most of
the time goes; of the third cache half counts, as others share it). ``percent`` is the largest,
``bound`` says which. Stages that run in turns have one time. Products with borders of zeros count
as work, padded channels do not. ``depthwise`` are sums whose factors both move along the vector:
nothing is used twice.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.codegen.cpu.canary import PeakCanary
from tilewright.codegen.cpu.emit import FLOAT, Module
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.codegen.cpu.target import named_target
from tilewright.codegen.cpu.traits import is_product, reduces_of
from tilewright.compiler.bench.machine import describe_commit, describe_device
from tilewright.compiler.build_program import layout_program
from tilewright.compiler.compile_kernels import KernelStore, formula
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import make_options
from tilewright.compiler.pipeline import Build, lower_model, support_texts
from tilewright.compiler.roofs import ensure_roofs
from tilewright.compiler.tuning import Trials
from tilewright.core.cache_folder import cache_folder
from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import product
from tilewright.graph.facade import Model
from tilewright.hw.machine import describe_machine
from tilewright.hw.roofs import Level, Roofs, load_all_measured
from tilewright.kernel.ir import Call, Kernel, Load, Reduce, walk
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from tilewright.lower.families import LOWERINGS
from tilewright.runtime.engine import Engine
from tilewright.runtime.profile import all_calls

ENOUGH = 90  # percent
KINDS = ("product", "depthwise")
USABLE_L3 = 2  # others share it: buffers of half its size were read at its speed
# How long LLVM's instructions hold one of two multipliers, in multiply-adds: measured on Zen 4,
# where additions and comparisons have units of their own.
_HELD = {"fmul": 1, "call .*@llvm.fma": 1, "fdiv": 3}


@dataclass(frozen=True, slots=True)
class _Part:
    """A stage's sums of products; ``held`` as in ``Product``."""

    kind: str
    flops: int
    held: int
    loops: str
    schedule: str


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of products that have one time.

    Attributes:
        place: of its time among those of a run.
        loops: its axes and those of its sum, with their extents.
        held: operations that the multipliers could do while they do what follows the sums.
        num_bytes: of all values that its kernel reads or writes, each once.
        weight_bytes: of its weights.
    """

    place: int
    label: str
    kind: str
    schedule: str
    loops: str
    flops: int
    held: int
    num_bytes: int
    weight_bytes: int


def main() -> None:
    """Measures every model and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--cpu", default="haswell")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--show", type=int, default=12, help="slowest stages to print")
    args = parser.parse_args()
    ensure_roofs(1)
    roofs = next(found for found in load_all_measured() if found.threads == 1)
    memory = _memory(roofs)
    measured = [_measured(path, args) for path in args.models]
    peak = max(found for *_, found in measured)
    models = [_report(path, products, least, peak, memory) for path, products, least, _ in measured]
    for model in models:
        _show(model, args.show)
    document = {
        "bench": "cpu_peak",
        "device": describe_device(),
        "commit": describe_commit(),
        "tilewright": tw.__version__,
        "cpu": args.cpu,
        "threads": 1,
        "peak_gflops": round(peak / 1e9, 1),
        "read_gb_per_s": {
            level.name: round(level.read_bytes_per_s / 1e9, 1) for _, level in memory
        },
        "models": models,
    }
    Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _memory(roofs: Roofs) -> list[tuple[float, Level]]:
    """Largest size of buffers for each memory behind the first cache, and its roof."""
    sizes = {f"L{one.level}": one.size_bytes for one in describe_machine().caches}
    sizes["L3"] = sizes.get("L3", 0) // USABLE_L3
    return [(sizes.get(one.name, math.inf), one) for one in roofs.levels if one.name != "L1"]


def _built(path: Path, cpu: str) -> tuple[Engine, list[Product]]:
    """The engine as ``compile`` makes it, and its sums of products."""
    options = make_options(
        target="cpu", cpu=cpu, precision="fp32", threads=1, dims=None, require=None
    )
    build = Build(options=options, cache=ObjectCache(cache_folder() / "objects"))
    model = Model.load(path, build.log, known=lambda domain, op: (domain, op) in LOWERINGS)
    builder, draft = lower_model(model, build)
    target = named_target(cpu)
    store = KernelStore(target, build.log)
    store.count(draft)
    layout_program(
        draft, builder.constants, target.lanes(32), build.log, least_block=target.least_block
    )
    trials = Trials(draft, builder.constants, store, build.cache, support_texts(target))
    made, engine = trials.assemble(formula, options)
    products = _products(made, engine, builder.constants)
    with tempfile.TemporaryDirectory() as folder:  # as it is used: weights in large pages
        engine.save(file := Path(folder) / "engine.tw")
        return tw.load(file, threads=1), products


def _products(made: KernelStore, engine: Engine, constants: Collection[str]) -> list[Product]:
    found: list[Product] = []
    place = 0
    for call in all_calls(engine.program):
        text = made.kernels[call.kernel]
        kernel = made.canonical[text]
        code = made.generated[(text, *[""] * len(kernel.stages))]
        schedules = {one.number: one.schedule for one in code.stages}
        label = f"{'+'.join(call.sources)}: {call.name}"
        sizes = {
            name: size.evaluate({}) for name, size in zip(call.buffers, call.traffic, strict=True)
        }
        weight_bytes = sum(size for name, size in sizes.items() if name in constants)
        num_bytes = sum(sizes.values()) - weight_bytes
        groups = [
            [part for n in one.stages if (part := _part(kernel, n, schedules[n])) is not None]
            for one in code.calls
        ]
        for parts in groups:
            if parts:  # those of stages that run in turns have one time
                flops = sum(part.flops for part in parts)
                held = sum(part.held for part in parts)
                if sum(map(bool, groups)) == 1:  # as it was before channels were padded
                    known = min(flops, call.flops.evaluate({}))
                    flops, held = known, held * known // flops
                found.append(
                    Product(
                        place=place,
                        label=label,
                        kind=max(parts, key=lambda part: part.flops).kind,
                        schedule=" then ".join(part.schedule for part in parts),
                        loops=" then ".join(part.loops for part in parts),
                        flops=flops,
                        held=held,
                        num_bytes=num_bytes,
                        weight_bytes=weight_bytes,
                    )
                )
            place += 1
    return found


def _part(kernel: Kernel, number: int, schedule: Schedule) -> _Part | None:
    """What a stage computes; None where nothing is multiplied and added up."""
    nest = prepare(kernel, kernel.stages[number])
    sums = [node for node in reduces_of(nest) if is_product(node)]
    if not sums:
        return None
    points = product(axis.extent for axis in nest.axes)
    if kernel.steps is not None:
        points = points * kernel.steps.extent
    flops = sum((2 * points * product(a.extent for a in node.axes)).evaluate({}) for node in sums)
    vector = schedule.vector
    forms = [nest.loads[id(n)] for n in walk(*sums) if isinstance(n, Load) and id(n) in nest.loads]
    strides = [form.stride(vector) for form in forms] if vector is not None else []
    alone = bool(strides) and all(stride is None or stride.terms for stride in strides)
    inner = nest.reduce_axes[id(sums[0])]
    loops = " over ".join(
        " ".join(f"{a.name}:{a.extent}" for a in axes) for axes in (nest.axes, inner)
    )
    return _Part(
        kind="depthwise" if alone else "product",
        flops=flops,
        held=2 * _held_after(nest) * points.evaluate({}),
        loops=loops,
        schedule=schedule.text,
    )


def _held_after(nest: Nest) -> int:
    """Multiply-adds that the multipliers could do while they do what follows a sum."""
    seen: set[int] = set()
    left = [store.value for store in nest.stage.stores]
    held = 0
    while left:
        node = left.pop()
        if id(node) in seen or isinstance(node, Load | Reduce):
            continue
        seen.add(id(node))
        left.extend(node.children)
        if isinstance(node, Call) and node.dtype is FLOAT32:
            held += _held_by(node.op, len(node.args))
    return held


@cache
def _held_by(op: str, num_args: int) -> int:
    """Of one operation on float32."""
    target = named_target("haswell")
    module = Module(target)
    kind = FLOAT.with_lanes(target.lanes(32))
    names = [f"x{k}" for k in range(num_args)]
    function = module.function("held", [(name, kind) for name in names])
    emit_op(function, op, [function.params[name] for name in names], FLOAT32)
    text = module.text()
    return sum(count * len(re.findall(rf"= {word}", text)) for word, count in _HELD.items())


def _measured(path: Path, args: Any) -> tuple[Path, list[Product], Any, float]:
    """Nanoseconds of each stage, and the multiply-adds of the canary, both at their best."""
    engine, products = _built(path, args.cpu)
    feeds: dict[str, Any] = dict(np.load(path.with_suffix(".npz")))
    canary = PeakCanary(1, named_target(args.cpu))
    clock = engine.stage_clock(feeds)
    clock.run()
    least, peak = clock.run(), canary.measure()
    for _ in range(args.runs):
        np.minimum(least, clock.run(), out=least)
        peak = max(peak, canary.measure())
    canary.close()
    return path, products, least, peak


def _report(
    path: Path,
    products: list[Product],
    least: Any,
    peak: float,
    memory: list[tuple[float, Level]],
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    weights = sum(one.weight_bytes for one in products)
    for one in products:
        us = max(float(least[one.place]) / 1e3, 0.001)
        fma = 100 * one.flops / peak * 1e6 / us
        with_after = 100 * (one.flops + one.held) / peak * 1e6 / us
        waits: dict[str, float] = {}
        for moved, held in ((one.num_bytes, one.num_bytes), (one.weight_bytes, weights)):
            level = next(level for size, level in memory if held <= size)
            wait = 100 * moved / level.read_bytes_per_s * 1e6 / us
            waits[level.name] = waits.get(level.name, 0.0) + wait
        moving = min(100.0, sum(waits.values()))
        rows.append(
            {
                "stage": one.label,
                "kind": one.kind,
                "loops": one.loops,
                "schedule": one.schedule,
                "mflop": round(one.flops / 1e6, 3),
                "bytes": one.num_bytes + one.weight_bytes,
                "us": round(us, 1),
                "fma_percent": round(fma, 1),
                "fma_percent_with_epilogue": round(with_after, 1),
                "memory_percent": round(moving, 1),
                "level": max(waits, key=lambda name: waits[name]),
                "bound": "memory" if moving > with_after else "multiply-adds",
                "percent": round(max(with_after, moving), 1),
            }
        )
    rows.sort(key=lambda row: -row["us"] * (100 - row["percent"]))
    return {
        "model": path.stem,
        "stages_us": round(float(least.sum()) / 1e3, 1),
        **{kind: _summary([row for row in rows if row["kind"] == kind]) for kind in KINDS},
        "stages": rows,
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Time, percent of the peak and of the roofs weighted by it, its part in stages near a roof."""
    us = sum(row["us"] for row in rows) or 1.0
    near = sum(row["us"] for row in rows if row["percent"] >= ENOUGH)
    fma, percent = (
        sum(row["us"] * min(100.0, row[name]) for row in rows) / us
        for name in ("fma_percent", "percent")
    )
    return {
        "us": round(us, 1),
        "fma_percent": round(fma, 1),
        "percent": round(percent, 1),
        "near": round(near / us, 3),
    }


def _show(model: dict[str, Any], count: int) -> None:
    summary = {name: value for name, value in model.items() if name != "stages"}
    print(json.dumps(summary), flush=True)
    for row in model["stages"][:count]:
        roofs = (
            f"{row['fma_percent']:5.1f}% FMA {row['fma_percent_with_epilogue']:5.1f}% with epilogue"
            f" {row['memory_percent']:5.1f}% {row['level']}"
        )
        print(
            f"  {row['us']:9.1f} us {roofs} | {row['loops']} | {row['schedule']} | {row['stage']}"
        )


if __name__ == "__main__":
    main()
