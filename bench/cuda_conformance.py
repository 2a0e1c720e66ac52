"""ONNX's conformance cases on an NVIDIA GPU: how many are right, and what became of the others.

    python bench/cuda_conformance.py OUT.json [--target sm_90] [--kinds node,simple]

Cases are compiled and run in as many processes as there are processors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PARTS = 64  # of a set, so that no process ends late


def main() -> None:
    """Runs all sets and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: _results(kind, folder, args.target) for kind in kinds}
    rows = [result for results in found.values() for result in results]
    document = {
        "bench": "cuda_conformance",
        **_machine(args.target),
        "commit": args.commit,
        "total": {"cases": len(rows), "wrong": 0, **_counts(rows)},
        "sets": {
            kind: {
                "cases": len(results),
                "compiled": sum(result.compiled for result in results),
                **_counts(results),
            }
            for kind, results in found.items()
        },
        "others": [
            {
                "set": kind,
                "case": result.name,
                "status": result.status,
                "detail": (result.detail or "?").splitlines()[0].split(".onnx: ")[-1],
            }
            for kind, results in found.items()
            for result in results
            if result.status != "passed"
        ],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["total"]))


def _results(kind: str, folder: str, target: str) -> list[Any]:
    from conformance.cases import run_part

    jobs = [(kind, part, PARTS, folder, target) for part in range(PARTS)]
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [result for results in pool.map(run_part, jobs) for result in results]


def _counts(results: list[Any]) -> dict[str, int]:
    return dict(sorted(Counter(result.status for result in results).items()))


def _machine(target: str) -> dict[str, Any]:
    import onnx

    import tilewright as tw

    found = {
        "target": target,
        "python": platform.python_version(),
        "onnx": onnx.__version__,
        "tilewright": tw.__version__,
    }
    if target == "cpu":
        return {"device": platform.machine(), **found}
    from tilewright.runtime.cuda.driver import open_device

    device = open_device()
    return {"device": device.name, "driver": device.driver_version, **found}


if __name__ == "__main__":
    main()
