"""What new sizes cost an engine of unknown sizes, and what it costs not to know them.

    python bench/dynamic_cpu.py OUT.json MODEL.onnx STATIC.onnx [--processes 7] [--dim NAME=1..8 ..]

Both models have one input, an image. Every figure is of fresh processes, the middle one of them.
A process runs one other size twice, then each size seven times: new, five times more, and once
more after the other size, as ``known``. ``first`` and ``known`` are what these runs take beyond the
middle one of the five, by the clock and in time of the processor; ``known`` is what sizes cost that
were planned before, and the noise. Processes whose other size is ``small`` have new pages for every
larger arena (``arena_mb``); those whose other size is ``large`` have none. Afterwards both engines
run the static model's size in turns: ``ratio`` of their least and of their middle times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tilewright as tw

SIZES = ((640, 640), (480, 640), (320, 320), (736, 1280), (608, 416))
OTHERS = {"small": (96, 96), "large": (768, 1312)}
THREADS = (1, 2)
STEADY, TURNS = 5, 10


def main() -> None:
    """Measures both engines and writes one document; with ``--inside``, is one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("model", type=Path)
    parser.add_argument("static", type=Path)
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--dim", action="append", default=[], help="a declared range")
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        print(json.dumps(measure(args.model, args.static, args.out, args.inside)))
        return
    from tilewright.compiler.bench.machine import describe_commit, describe_device

    ranges = dict(_range(text) for text in args.dim)
    rows = [row for threads in THREADS for row in _rows(args, ranges, threads)]
    document = {
        "bench": "dynamic_cpu",
        "device": describe_device(),
        "commit": describe_commit(),
        "tilewright": tw.__version__,
        "model": args.model.stem,
        "static": args.static.stem,
        "processes": args.processes,
        "dims": ranges,
        "rows": rows,
    }
    Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measure(model: Path, static: Path, other: str, threads: int) -> dict[str, Any]:
    """What one process sees: milliseconds by size, and of both engines in turns."""
    engine, fixed = (tw.load(path, threads=threads) for path in (model, static))
    warm = _image(engine, OTHERS[other])
    for _ in range(2):
        engine.run(warm)
    sizes: dict[str, Any] = {}
    for size in SIZES:
        image = _image(engine, size)
        first = _timed(engine, image)
        steady = [_timed(engine, image) for _ in range(STEADY)]
        engine.run(warm)
        known = _timed(engine, image)
        wall, cpu = (median(each) for each in zip(*steady, strict=True))
        arena = engine.arena_bytes(engine.checked(image)[1]) or 0
        sizes["x".join(map(str, size))] = {
            "steady_ms": wall,
            "first_wall_ms": first[0] - wall,
            "first_cpu_ms": first[1] - cpu,
            "known_wall_ms": known[0] - wall,
            "arena_mb": arena / 2**20,
        }
    shape = [dim.const for dim in fixed.inputs[0].shape or ()]
    images = [(one, _image(one, (shape[2], shape[3]))) for one in (engine, fixed)]
    for one, image in images:
        one.run(image)
    turns = [[_timed(one, image)[0] for one, image in images] for _ in range(TURNS)]
    mine, theirs = zip(*turns, strict=True)
    return {"sizes": sizes, "dynamic_ms": mine, "static_ms": theirs}


def _image(engine: tw.Engine, size: Sequence[int]) -> dict[str, Any]:
    pixels = np.random.default_rng(0).standard_normal((1, 3, *size))
    return {engine.inputs[0].name: pixels.astype(np.float32)}


def _timed(engine: tw.Engine, feeds: dict[str, Any]) -> tuple[float, float]:
    """By the clock, and time of the process on processors; the outputs are let go afterwards."""
    busy, start = time.process_time(), time.perf_counter()
    outputs = engine.run(feeds)
    found = (time.perf_counter() - start) * 1e3, (time.process_time() - busy) * 1e3
    del outputs
    return found


def _rows(args: argparse.Namespace, ranges: dict[str, Any], threads: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("dynamic.tw", "static.tw")]
        tw.compile(args.model, threads=threads, dims=ranges or None).save(files[0])
        tw.compile(args.static, threads=threads).save(files[1])
        found: dict[str, list[Any]] = {other: [] for other in OTHERS}
        for _ in range(args.processes):
            for other, seen in found.items():
                command = [sys.executable, __file__, other, *files, "--inside", str(threads)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seen.append(json.loads(done.stdout))
    rows = [{"threads": threads, "other": other, **_row(seen)} for other, seen in found.items()]
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def _row(seen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The middle of several processes, and the least and most of ``first``."""
    sizes: dict[str, dict[str, float]] = {}
    for name, fields in seen[0]["sizes"].items():
        each = {field: [one["sizes"][name][field] for one in seen] for field in fields}
        sizes[name] = {field: round(median(numbers), 2) for field, numbers in each.items()}
        firsts = each["first_wall_ms"]
        sizes[name]["first_wall_least_ms"] = round(min(firsts), 2)
        sizes[name]["first_wall_most_ms"] = round(max(firsts), 2)
    least = [min(min(one[kind]) for one in seen) for kind in ("dynamic_ms", "static_ms")]
    middle = [median(median(one[kind]) for one in seen) for kind in ("dynamic_ms", "static_ms")]
    return {
        "sizes": sizes,
        "static_ms": round(least[1], 2),
        "ratio_min": round(least[0] / least[1], 3),
        "ratio_median": round(middle[0] / middle[1], 3),
    }


def _range(text: str) -> tuple[str, tuple[int, int]]:
    name, _, ends = text.partition("=")
    low, _, high = ends.partition("..")
    return name, (int(low), int(high))


if __name__ == "__main__":
    main()
