"""Networks on an NVIDIA GPU: error against float64 first, then time of all kernels as one graph.

    python bench/cuda_models.py OUT.json MODEL.onnx .. [--precision fp16] [--kernels]

Times are medians of graph replays by the GPU's clock, inputs and weights on the GPU. The floor is
the larger of the bytes of weights, inputs and outputs over the measured copy bandwidth, and the
operations over the measured rate of matrix products (both of one H200: docs/cuda.md).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.samples import sample_feeds
from tilewright.runtime.cuda.driver import open_device
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.cuda.profile import graph_us, kernel_us
from tilewright.runtime.feeds import check_feeds
from tilewright.runtime.program import Segment

COPY_BYTES_PER_S = 4.3e12
FP16_FLOPS = 790e12


def main() -> None:
    """Measures every model and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--kernels", action="store_true", help="time single kernels too")
    parser.add_argument("--commit", default="")
    parser.add_argument("--disable", nargs="*", default=[], help="tactics not to choose")
    parser.add_argument("--no-overlap", action="store_true", help="launch no kernel early")
    args = parser.parse_args()
    device = open_device()
    rows = []
    for path in args.models:
        try:
            rows.append(_measure(path, args))
        except tw.UserError as error:
            rows.append({"model": path.stem, "error": error.message})
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "kernels"}), flush=True)
    document = {
        "bench": "cuda_models",
        "device": device.name,
        "capability": device.capability,
        "driver": device.driver_version,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tilewright": tw.__version__,
        "commit": args.commit or _commit(),
        "precision": args.precision,
        "imported": [name for name in ("torch", "triton") if name in sys.modules],
        "models": rows,
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")


def _measure(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    sample = path.with_suffix(".npz")
    feeds = dict(np.load(sample)) if sample.exists() else None
    target = f"sm_{open_device().capability}"
    engine = tw.compile(
        path,
        target=target,
        precision=args.precision,
        verify_feeds=feeds,
        disable=args.disable,
    )
    row: dict[str, Any] = {
        "model": path.stem,
        "max_error": engine.summary.get("max_error"),
        "verification": engine.summary["verification"],
        "compile_s": round(time.perf_counter() - start, 1),
    }
    feeds = feeds or next(iter(sample_feeds(engine.inputs, engine.ranges, 0)))
    executor = engine._runnable()
    assert isinstance(executor, CudaExecutor)
    if args.no_overlap:
        executor.modules.overlap = False
        executor.release()
    outputs = engine.run(feeds)
    row["run_us"] = round(_run_us(engine, feeds), 1)
    segments = [step for step in engine.program.steps if isinstance(step, Segment)]
    values, symbols = check_feeds(feeds, engine.inputs, {})
    row["segments"], row["kernels_count"] = len(segments), engine.summary["kernels"]
    moved = [*feeds.values(), *outputs.values(), *engine._parts.constants.values()]
    num_bytes = sum(np.asarray(array).nbytes for array in moved)
    flops = sum(
        c.flops.evaluate(symbols)
        for s in segments
        for c in s.calls
        if c.flops.symbols <= symbols.keys()
    )
    floor_us = 1e6 * max(num_bytes / COPY_BYTES_PER_S, flops / FP16_FLOPS)
    if len(segments) == 1:
        record: list[Launched] = []
        executor.recorded(record).run(engine.program, values, symbols)
        context = record[0].context
        addresses = context.addresses(record[0].buffers)
        row["gpu_us"] = round(graph_us(context, context.plan.steps, addresses, 100), 2)
        row["overlap"] = executor.modules.overlap
        if args.kernels:
            row["kernels"] = [
                [
                    round(us, 2),
                    segments[0].calls[number].tactic,
                    "+".join(segments[0].calls[number].sources)[:90],
                ]
                for number, us in kernel_us(record[0])
            ]
        row["floor_us"] = round(floor_us, 2)
        row["over_floor"] = round(row["gpu_us"] / floor_us, 2)
    return row


def _run_us(engine: tw.Engine, feeds: dict[str, Any]) -> float:
    """Median time of a run from and to host memory."""
    host = []
    for _ in range(30):
        begin = time.perf_counter()
        engine.run(feeds)
        host.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(host)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main()
