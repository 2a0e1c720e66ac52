"""Peak memory and time to load: an engine beside ONNX Runtime, in processes of their own.

    python bench/memory_cpu.py OUT.json MODEL.onnx .. [--threads 1]

Inputs are those of the ``.npz`` beside the model. Memory is the process's VmHWM after three runs,
Python and NumPy included. Loading is timed in a process that has imported what it needs, and that
has the caches' pages of the file. ``page_in_ms`` is what the bytes alone take: to map the file and
to hash it once, as loading does; ``rest_ms`` is what loading takes beside that. Each is the least
and the median of several processes, in turns; engines are compiled before, in this process.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime import piece_hash

RUNS = 3
PROCESSES = 5
PEER_PROCESSES = 3


def main() -> None:
    """Measures every model and writes one document; with ``--inside``, is one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(INSIDE[args.out](*args.models, args.threads)))
        return
    # Not above: what it imports would count as memory of those that are measured.
    from tilewright.compiler.bench.machine import describe_commit, describe_device

    rows = []
    for model in args.models:
        rows.append(_row(model, args.threads))
        print(json.dumps(rows[-1]), flush=True)
    document = {
        "bench": "memory_cpu",
        "device": describe_device(),
        "commit": describe_commit(),
        "tilewright": tw.__version__,
        "threads": args.threads,
        "processes": {"tilewright": PROCESSES, "onnxruntime": PEER_PROCESSES},
        "models": rows,
    }
    Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# --- inside of a process --------------------------------------------------------------------------


def _tilewright(model: Path, feeds: Path, threads: int) -> dict[str, float]:
    _ = tw.load  # what it imports is not part of loading an engine
    start = time.perf_counter()
    engine = tw.load(model, threads=threads)
    return _finished(start, feeds, engine.run)


def _onnxruntime(model: Path, feeds: Path, threads: int) -> dict[str, float]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    start = time.perf_counter()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return _finished(start, feeds, lambda arrays: session.run(None, arrays))


def _page_in(file: Path, feeds: Path, threads: int) -> dict[str, float]:
    del feeds, threads
    start = time.perf_counter()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        let_go = lambda first, size: pages.madvise(mmap.MADV_DONTNEED, first, size)  # noqa: E731
        with memoryview(pages) as data:
            piece_hash.hash_of(data, let_go)
    return {"page_in_ms": (time.perf_counter() - start) * 1e3}


def _finished(start: float, feeds: Path, run: Callable[[dict[str, Any]], Any]) -> dict[str, float]:
    """What it took to load since then, and what it takes to run: megabytes at the peak."""
    load_ms = (time.perf_counter() - start) * 1e3
    arrays = dict(np.load(feeds))
    for _ in range(RUNS):
        run(arrays)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_kb = int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return {"peak_mb": peak_kb / 1024, "load_ms": load_ms}


INSIDE = {"tilewright": _tilewright, "onnxruntime": _onnxruntime, "page_in": _page_in}


# --- around them ----------------------------------------------------------------------------------


def _row(model: Path, threads: int) -> dict[str, Any]:
    feeds = model.with_suffix(".npz")
    found: dict[str, list[float]] = {}
    peer: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "engine.tw"
        tw.compile(model, threads=threads).save(engine)
        size_mb = round(engine.stat().st_size / 2**20, 1)
        for turn in range(PROCESSES):
            _in_process("tilewright", engine, feeds, threads, found)
            _in_process("page_in", engine, feeds, threads, found)
            if turn < PEER_PROCESSES:
                _in_process("onnxruntime", model, feeds, threads, peer)
    ours = {name: _summary(values) for name, values in found.items()}
    ours["rest_ms"] = {
        kind: round(ours["load_ms"][kind] - ours["page_in_ms"][kind], 1)
        for kind in ("minimum", "median")
    }
    theirs = {name: _summary(values) for name, values in peer.items()}
    ratio = theirs["peak_mb"]["minimum"] / ours["peak_mb"]["minimum"]
    return {
        "model": model.stem,
        "engine_mb": size_mb,
        "tilewright": ours,
        "onnxruntime": theirs,
        "ratio_peak": round(ratio, 2),
    }


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "minimum": round(min(values), 1),
        "median": round(statistics.median(values), 1),
    }


def _in_process(
    name: str, model: Path, feeds: Path, threads: int, found: dict[str, list[float]]
) -> None:
    """Adds what a process measures to ``found``."""
    command = [sys.executable, __file__, name, model, feeds, "--threads", str(threads), "--inside"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for key, value in json.loads(done.stdout).items():
        found.setdefault(key, []).append(value)


if __name__ == "__main__":
    main()
