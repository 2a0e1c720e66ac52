"""Engines and torch on an NVIDIA GPU, in turns: a table of times and ratios.

    python bench/cuda_table.py OUT.json FOLDER [--only NAME,..] [--precision fp16] [--tune 6]

FOLDER has the ONNX files of ``CASES`` and sample inputs (``NAME.npz``) beside them. Every network
has a process that prepares all contenders; then the networks are timed one at a time. Contenders:
    ours     the engine's graph, on arrays of the GPU
    tuned    that of the engine that `tune` made of it (with --tune)
    eager    torch, captured as a CUDA graph
    compile  torch.compile, captured as a CUDA graph
all in the same precision, images with channels last, on the graph that our passes made (batch
normalisation folded, attention and GELU as torch's fused operators). Outputs are compared with the
same graph in float64 first. A time is GPU time of a run in a batch of runs, by events; the table
has medians of rounds in which the contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import UserError

ROUNDS, ROUND_MS = 11, 8.0
LONGEST_S = 420.0  # for the slowest preparation
FAILURES = (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError, OSError, UserError)
TOLERANCE = {"fp16": 2e-2, "fp32": 2e-5}
OURS = ("ours", "tuned")


@dataclass(frozen=True)
class Case:
    """A row of the table: a model whose inputs get a batch."""

    name: str
    model: str
    batch: int = 1
    sizes: dict[str, int] = field(default_factory=dict)


_TEXT = {"sequence": 128}
CASES = (
    *(Case(f"ResNet-50 b{b}", "resnet50_b1", b) for b in (1, 8, 64)),
    *(Case(f"BERT-base s128 b{b}", "bert_base", b, _TEXT) for b in (1, 8, 64)),
    Case("EfficientNet-Lite0 b1", "efficientnet_lite0_static"),
    Case("PP-OCRv6 det 640 b1", "ppocr_det_static"),
    Case("CenterFace b1", "centerface_static"),
    Case("MiniLM s128 b1", "minilm", 1, _TEXT),
)


def main() -> None:
    """Measures all cases and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names of models, with commas between them")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp32"))
    parser.add_argument("--tune", type=int, default=1, help="candidates of each kernel to time")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    wanted = [part for part in args.only.split(",") if part]
    cases = [case for case in CASES if not wanted or case.model in wanted]
    spawn = multiprocessing.get_context("spawn")
    barrier, lock, rows = spawn.Barrier(len(cases)), spawn.Lock(), spawn.Queue()
    workers = [
        spawn.Process(target=_work, args=(case, vars(args), barrier, lock, rows)) for case in cases
    ]
    for worker in workers:
        worker.start()
    found: dict[str, dict[str, Any]] = {}
    for _ in cases:
        row = rows.get()
        found[row["name"]] = row
        document = _document(args, [found[case.name] for case in cases if case.name in found])
        args.out.write_text(json.dumps(document, indent=1) + "\n")  # what there is so far
    for worker in workers:
        worker.join()
    print(table(document))


def _work(case: Case, args: dict[str, Any], barrier: Any, lock: Any, rows: Any) -> None:
    row: dict[str, Any] = {"name": case.name}
    contest = None
    start = time.perf_counter()
    try:
        contest = Contest(case, args)
        row.update(contest.facts)
    except FAILURES as error:  # the others go on
        row["error"] = f"{type(error).__name__}: {str(error)[:600]}"
        traceback.print_exc()
    row["prepared_s"] = round(time.perf_counter() - start, 1)
    barrier.wait(LONGEST_S)
    with lock:
        if contest is not None:
            if args["tune"] > 1:
                row.update(contest.tune())
            row.update(contest.times())
        print(json.dumps(row), file=sys.stderr, flush=True)
    rows.put(row)


class Contest:
    """All contenders of one case, ready to run.

    Attributes:
        facts: errors and sizes.
    """

    def __init__(self, case: Case, args: dict[str, Any]) -> None:
        import torch
        from onnx_to_torch import to_torch

        import tilewright as tw
        from tilewright.runtime.cuda.driver import open_device

        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(False)
        self.stream = torch.cuda.Stream()
        with tempfile.TemporaryDirectory() as folder:
            model, feeds = _fixed(case, Path(args["folder"]), Path(folder))
            dumped = Path(folder) / "dumped.onnx"
            engine = tw.compile(
                model,
                target=f"sm_{open_device().capability}",
                precision=args["precision"],
                verify=False,
                dump_graph=dumped,
                candidates=args["tune"],
            )
            half = torch.float16 if args["precision"] == "fp16" else torch.float32
            exact = to_torch(dumped, torch.float64, "cuda")
            module = to_torch(dumped, half, "cuda")
        names = [spec.name for spec in engine.inputs]
        there = engine.to_device(feeds)
        expected = [t.double() for t in exact(*_tensors(feeds, names, torch.float64))]
        del exact
        inputs = _tensors(feeds, names, half)
        handle = self.stream.cuda_stream
        self._engine, self._feeds, self._there, self._expected = engine, feeds, there, expected
        self.runs: dict[str, Any] = {"ours": lambda: engine.run_on_device(there, stream=handle)}
        outputs = {"ours": self._outputs(engine)}
        for name in ("eager", "compile"):
            function = module
            if name == "compile":
                function = torch.compile(module, fullgraph=True, dynamic=False)
            graph, outputs[name] = self._captured(function, inputs)
            self.runs[name] = graph.replay
            graph.replay()
        torch.cuda.synchronize()
        self.facts = {
            "kernels": engine.summary["kernels"],
            "errors": {name: _largest(got, expected) for name, got in outputs.items()},
        }
        self.facts["is_right"] = self.facts["errors"]["ours"] <= TOLERANCE[args["precision"]]
        self._kept = (module, inputs, outputs)

    def _outputs(self, engine: Any) -> list[Any]:
        import torch

        found = engine.run_on_device(self._there, stream=self.stream.cuda_stream)
        self.stream.synchronize()
        return [torch.from_dlpack(found[spec.name]) for spec in engine.outputs]

    def _captured(self, function: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        import torch

        with torch.cuda.stream(self.stream):
            for _ in range(3):
                function(*inputs)
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            outputs = function(*inputs)
        return graph, list(outputs)

    def tune(self) -> dict[str, Any]:
        """Adds the engine with its fastest candidates as a contender."""
        from tilewright.tune.on_gpu import tune_on_gpu

        tuned, report = tune_on_gpu(self._engine, self._feeds)
        handle = self.stream.cuda_stream
        self.runs["tuned"] = lambda: tuned.run_on_device(self._there, stream=handle)
        changed = [row for row in report.rows if row.chosen != row.formula]
        return {
            "tuned": {
                "error": _largest(self._outputs(tuned), self._expected),
                "timed": report.timed,
                "changed": len(changed),
                "kernels": len(report.rows),
                "streams": report.streams,
                "wrong": [[row.name[:60], *row.wrong] for row in report.rows if row.wrong],
                "before_us": round(report.before_us, 1),
                "after_us": round(report.after_us, 1),
                "whole": report.whole,
            }
        }

    def times(self) -> dict[str, Any]:
        """Rounds in which the contenders take turns."""
        counts = {name: max(3, int(ROUND_MS / self._ms(name, 3))) for name in self.runs}
        rounds: dict[str, list[float]] = {name: [] for name in self.runs}
        names = list(self.runs)
        for number in range(ROUNDS):
            for k in range(len(names)):
                name = names[(number + k) % len(names)]
                rounds[name].append(self._ms(name, counts[name]))
        ms = {name: round(statistics.median(times), 4) for name, times in rounds.items()}
        best = min((name for name in names if name not in OURS), key=lambda name: ms[name])
        ratios = {
            name: statistics.median(b / a for a, b in zip(rounds[name], rounds[best], strict=True))
            for name in OURS
            if name in rounds
        }
        return {
            "ms": ms,
            "least_ms": {name: round(min(times), 4) for name, times in rounds.items()},
            "best_peer": best,
            "ratio": round(ratios["ours"], 3),
            **({"tuned_ratio": round(ratios["tuned"], 3)} if "tuned" in ratios else {}),
        }

    def _ms(self, name: str, count: int) -> float:
        import torch

        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run = self.runs[name]
        with torch.cuda.stream(self.stream):
            run()
            start.record()
            for _ in range(count):
                run()
            stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / count


def _fixed(case: Case, folder: Path, scratch: Path) -> tuple[Path, dict[str, Any]]:
    """The model with its sizes fixed, and inputs of these sizes."""
    import onnx

    model = onnx.load(folder / f"{case.model}.onnx")
    sample = dict(np.load(folder / f"{case.model}.npz"))
    feeds = {}
    random = np.random.default_rng(0)
    for info in model.graph.input:
        if info.name not in sample:
            continue
        dims = info.type.tensor_type.shape.dim
        dims[0].dim_value = case.batch
        for dim in dims:
            if dim.dim_param:
                dim.dim_value = case.sizes[dim.dim_param]
        array = np.concatenate([sample[info.name]] * case.batch)[: case.batch]
        if array.dtype.kind == "f":
            array = array + 0.1 * random.standard_normal(array.shape).astype(array.dtype)
        feeds[info.name] = np.ascontiguousarray(array)
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    path = scratch / "fixed.onnx"
    onnx.save(model, path)
    return path, feeds


def _tensors(feeds: dict[str, Any], names: list[str], dtype: Any) -> list[Any]:
    import torch

    found = []
    for name in names:
        tensor = torch.from_numpy(feeds[name]).cuda()
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        if tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        found.append(tensor)
    return found


def _largest(found: list[Any], expected: list[Any]) -> float:
    return max(_error(*pair) for pair in zip(found, expected, strict=True))


def _error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest value; infinite for NaN."""
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    return error if math.isfinite(error) else math.inf


def _document(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    import tilewright as tw

    return {
        "bench": "cuda_table",
        "device": torch.cuda.get_device_name(),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "tilewright": tw.__version__,
        "commit": args.commit,
        "precision": args.precision,
        "processors": os.cpu_count(),
        "geometric_mean": _mean(rows, "ratio"),
        "tuned_geometric_mean": _mean(rows, "tuned_ratio"),
        "models": rows,
    }


def _mean(rows: list[dict[str, Any]], key: str) -> float | None:
    ratios = [row[key] for row in rows if row.get(key)]
    return round(statistics.geometric_mean(ratios), 3) if ratios else None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def table(document: dict[str, Any]) -> str:
    """The document as a table of Markdown."""
    lines = [
        "| network, ms | ours | eager | compile | ratio | tuned | ratio | error | peer's error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["models"]:
        if "ms" not in row:
            lines.append(f"| {row['name']} | {row.get('error', '?')[:80]} | | | | | | | |")
            continue
        ms, errors = row["ms"], row["errors"]
        mark = "" if row["is_right"] else " (over the tolerance)"
        lines.append(
            f"| {row['name']} | {ms['ours']:.3f} | {ms['eager']:.3f} | {ms['compile']:.3f} "
            f"| {row['ratio']:.2f} | {_cell(ms.get('tuned'), 3)} "
            f"| {_cell(row.get('tuned_ratio'), 2)} "
            f"| {errors['ours']:.1e}{mark} | {errors[row['best_peer']]:.1e} |"
        )
    means = f"{document['geometric_mean']} | | {document['tuned_geometric_mean'] or ''}"
    lines.append(f"| geometric mean | | | | {means} | | |")
    return "\n".join(lines)


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
