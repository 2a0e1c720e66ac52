"""Peak memory and time to load: an engine beside ONNX Runtime, in processes of their own.

    python bench/memory_cpu.py OUT.json MODEL.onnx .. [--threads 1]

Inputs are those of the ``.npz`` beside the model. Memory is the process's VmHWM after three runs,
Python and NumPy included. Loading is timed in a process that has imported what it needs; to read
the engine's file once takes ``page_in_ms``. Each is the least of three processes; engines are
compiled before, in this process. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

RUNS = 3
PROCESSES = 3


def main() -> None:
    """Measures every model and writes one document; with ``--inside``, is one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure(args.out, args.models[0], args.models[1], args.threads)))
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
        "models": rows,
    }
    Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measure(runtime: str, model: Path, feeds: Path, threads: int) -> dict[str, float]:
    """Loads and runs, and says what it took: megabytes at the peak, milliseconds to load."""
    arrays: dict[str, Any] = dict(np.load(feeds))
    if runtime == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        start = time.perf_counter()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        run = lambda: session.run(None, arrays)  # noqa: E731
    else:
        _ = tw.load  # what it imports is not part of loading an engine
        start = time.perf_counter()
        engine = tw.load(model, threads=threads)
        run = lambda: engine.run(arrays)  # noqa: E731
    load_ms = (time.perf_counter() - start) * 1e3
    for _ in range(RUNS):
        run()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_kb = int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return {"peak_mb": round(peak_kb / 1024, 1), "load_ms": round(load_ms, 1)}


def _row(model: Path, threads: int) -> dict[str, Any]:
    feeds = model.with_suffix(".npz")
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "engine.tw"
        tw.compile(model, threads=threads).save(engine)
        found = {
            name: _in_processes(name, path, feeds, threads)
            for name, path in (("tilewright", engine), ("onnxruntime", model))
        }
        found["tilewright"]["page_in_ms"] = round(min(_page_in_ms(engine) for _ in range(3)), 1)
        size_mb = round(engine.stat().st_size / 2**20, 1)
    ratio = found["onnxruntime"]["peak_mb"] / found["tilewright"]["peak_mb"]
    return {"model": model.stem, "engine_mb": size_mb, **found, "ratio_peak": round(ratio, 2)}


def _page_in_ms(file: Path) -> float:
    """What it takes to read every page of a file."""
    piece = bytearray(1 << 20)
    start = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(piece):
            pass
    return (time.perf_counter() - start) * 1e3


def _in_processes(name: str, model: Path, feeds: Path, threads: int) -> dict[str, float]:
    found = [_in_process(name, model, feeds, threads) for _ in range(PROCESSES)]
    return {key: min(one[key] for one in found) for key in ("peak_mb", "load_ms")}


def _in_process(name: str, model: Path, feeds: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, name, model, feeds, "--threads", str(threads), "--inside"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
