"""What running costs beside the kernels, on an NVIDIA GPU: the host's time of a run, loading, and
how far copies and kernels overlap.

    python bench/cuda_runtime.py OUT.json MODEL.onnx .. [--batches 64]

    host_us     enqueueing one run whose inputs and outputs are on the GPU: median of means of 4
    load_s      an engine file to an engine that has run once, after CUDA has been initialised
    stream_ms   batches from the host through ``Engine.stream``, against copying them alone and
                computing them alone; for arrays of NumPy and for pinned ones
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.cuda.driver import bindings, check, open_device

REPEATS = 5


def main() -> None:
    """Measures every model and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    device = open_device()
    rows = []
    for path in args.models:
        rows.append(_measure(path, args.batches))
        print(json.dumps(rows[-1]), flush=True)
    document = {
        "bench": "cuda_runtime",
        "device": device.name,
        "driver": device.driver_version,
        "python": platform.python_version(),
        "tilewright": tw.__version__,
        "commit": args.commit,
        "imported": [name for name in ("torch", "triton", "onnx") if name in sys.modules],
        "models": rows,
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")


def _measure(path: Path, batches: int) -> dict[str, Any]:
    feeds = dict(np.load(path.with_suffix(".npz")))
    target = f"sm_{open_device().capability}"
    engine = tw.compile(path, target=target, precision="fp16", verify=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engine.tw"
        engine.save(file)
        start = time.perf_counter()
        engine = tw.load(file)
        loaded_s = time.perf_counter() - start
        engine.run(feeds)
        ready_s = time.perf_counter() - start
    row: dict[str, Any] = {
        "model": path.stem,
        "kernels": engine.summary["kernels"],
        "load_s": round(loaded_s, 4),
        "load_and_run_s": round(ready_s, 4),
        "host_us": round(_host_us(engine, feeds), 2),
    }
    copies = [{name: array.copy() for name, array in feeds.items()} for _ in range(batches)]
    pinned = [engine.pinned(one) for one in copies]
    row["batch_bytes"] = sum(array.nbytes for array in feeds.values())
    row["copy_ms"] = round(_least(lambda: _copy_alone(pinned)), 3)
    row["compute_ms"] = round(_least(lambda: _compute_alone(engine, feeds, batches)), 3)
    for name, given in (("pageable", copies), ("pinned", pinned)):
        row[f"stream_{name}_ms"] = round(_least(lambda given=given: _stream(engine, given)), 3)
    row["one_by_one_ms"] = round(_least(lambda: [engine.run(one) for one in copies]), 3)
    limit = max(row["copy_ms"], row["compute_ms"])
    row["over_limit"] = {
        name: round(row[f"stream_{name}_ms"] / limit, 3) for name in ("pageable", "pinned")
    }
    return row


def _host_us(engine: tw.Engine, feeds: dict[str, Any]) -> float:
    """Few runs at a time, so that none waits for the GPU."""
    there = engine.to_device(feeds)
    stream = check(bindings().cuStreamCreate(1), "making a stream")
    handle = int(stream)
    found = []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(4):
            engine.run_on_device(there, stream=handle)
        found.append((time.perf_counter() - start) / 4)
        check(bindings().cuStreamSynchronize(stream), "waiting")
    return 1e6 * float(np.median(found))


def _copy_alone(batches: list[dict[str, Any]]) -> None:
    driver = bindings()
    size = sum(array.nbytes for array in batches[0].values())
    place = open_device().allocate(size, "a batch")
    stream = check(driver.cuStreamCreate(1), "making a stream")
    for batch in batches:
        at = place
        for array in batch.values():
            check(driver.cuMemcpyHtoDAsync(at, array.ctypes.data, array.nbytes, stream), "copying")
            at += array.nbytes
    check(driver.cuStreamSynchronize(stream), "waiting")
    driver.cuMemFree(place)
    driver.cuStreamDestroy(stream)


def _compute_alone(engine: tw.Engine, feeds: dict[str, Any], count: int) -> None:
    there = engine.to_device(feeds)
    stream = check(bindings().cuStreamCreate(1), "making a stream")
    for _ in range(count):
        engine.run_on_device(there, stream=int(stream))
    check(bindings().cuStreamSynchronize(stream), "waiting")


def _stream(engine: tw.Engine, batches: list[dict[str, Any]]) -> None:
    for _ in engine.stream(batches):
        pass


def _least(work: Any) -> float:
    """Milliseconds."""
    work()
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - start))
    return min(found)


if __name__ == "__main__":
    main()
