"""Quantised engines on an NVIDIA GPU beside our own float16 ones, and products of narrow types.

    python bench/cuda_quantized.py OUT.json FOLDER [--only NAME,..] [--tune 1] [--commit C]

FOLDER has the ONNX files of ``CASES``: each float model beside quantised forms of it. All engines
of a case are compiled with ``precision="fp16"`` (what is not quantised is float16) and run in turns
on the same arrays of the GPU. A time is GPU time of a run in a batch of runs, by events; the
document has medians of rounds. Before that, engines of the quantised forms at batch 1 are compared
with NumPy: where all operators between inputs and results are integers, bit for bit (in float32);
else by the largest difference from float64, relative to the largest value, beside that of NumPy's
own float32, which rounds what is almost a tie otherwise too. Rows of products of integers are
compared bit for bit. Needs tests/ on the path, and PyTorch for events alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import tilewright as tw
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.compiler.cuda_kernels import CudaStore
from tilewright.core.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, INT8, UINT8
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.kernel.ir import Kernel
from tilewright.runtime.cuda.driver import open_device
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.cuda.graph import Chain
from tilewright.runtime.program import Program, Segment, TensorSpec
from unit.codegen.cuda.contractions import narrow_product
from unit.quantized.qdq import simulated

ROUNDS, ROUND_MS = 11, 8.0
SIZE = 8192
ROWS = 16  # of a product, that are compared
TYPES = {
    "int8": (INT8, INT8),
    "uint8 by int8": (UINT8, INT8),
    "float8_e4m3fn": (FLOAT8_E4M3FN, FLOAT8_E4M3FN),
    "bfloat16": (BFLOAT16, BFLOAT16),
    "float16": (FLOAT16, FLOAT16),
}


@dataclass(frozen=True)
class Case:
    """A row: a float model and its quantised forms, with another batch.

    Attributes:
        simulated: the form that is compared with the simulator.
    """

    name: str
    model: str
    forms: dict[str, str]
    batch: int
    simulated: str = ""


CASES = (
    Case(
        "ResNet-50 b64",
        "resnet50_b1",
        {"int8": "resnet50_b1_qdq", "float8": "resnet50_b1_float8"},
        64,
        "int8",
    ),
    Case("ResNet-50 b1", "resnet50_b1", {"int8": "resnet50_b1_qdq"}, 1),
    Case(
        "BERT-base s128 b64",
        "bert_base_static",
        {"int8": "bert_base_qdq", "float8": "bert_base_float8"},
        64,
    ),
    Case("BERT-base s128 b1", "bert_base_static", {"int8": "bert_base_qdq"}, 1),
    Case(
        "EfficientNet-Lite0 b1",
        "efficientnet_lite0_static",
        {"int8": "efficientnet_lite0_qdq_static"},
        1,
        "int8",
    ),
)


def main() -> None:
    """Measures all cases and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tune", type=int, default=1, help="candidates of each kernel to time")
    parser.add_argument("--tiles", type=int, default=1, help="tiles of each product to time")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    device = open_device()
    document: dict[str, Any] = {
        "bench": "cuda_quantized",
        "device": device.name,
        "driver": device.driver_version,
        "tilewright": tw.__version__,
        "commit": args.commit,
        "products": [],
        "networks": [],
    }
    wanted = [part for part in args.only.split(",") if part]
    if not wanted or "products" in wanted:
        document["products"] = products(args.tiles)
    for case in CASES:
        if not wanted or case.name in wanted:
            document["networks"].append(network(case, args.folder, args.tune))
            print(json.dumps(document["networks"][-1]), flush=True)
            args.out.write_text(json.dumps(document, indent=1) + "\n")
    args.out.write_text(json.dumps(document, indent=1) + "\n")


# --- networks -------------------------------------------------------------------------------------


def network(case: Case, folder: Path, tune: int) -> dict[str, Any]:
    """Times of a case's engines in turns; ratios to float16."""
    files = {"fp16": case.model, **case.forms}
    files = {k: v for k, v in files.items() if (folder / f"{v}.onnx").exists()}
    with ThreadPoolExecutor(len(files)) as pool:
        made = list(
            pool.map(lambda f: _engine(folder / f"{f}.onnx", case.batch, tune), files.values())
        )
    feeds = _feeds(folder / f"{case.model}.onnx", case.batch)
    stream = torch.cuda.Stream()
    runs: dict[str, Any] = {}
    row: dict[str, Any] = {"name": case.name, "kernels": {}}
    for name, engine in zip(files, made, strict=True):
        if tune > 1:
            from tilewright.tune.on_gpu import tune_on_gpu

            engine, _ = tune_on_gpu(engine, feeds)
        there = engine.to_device(feeds)
        row["kernels"][name] = engine.summary["kernels"]
        runs[name] = lambda e=engine, t=there: e.run_on_device(t, stream=stream.cuda_stream)
    if case.simulated:
        row["simulator"] = _compared(folder / f"{case.forms[case.simulated]}.onnx")
    if case.batch > 1:
        left = [form for form in files if form not in ("fp16", case.simulated)]
        row["errors"] = {form: _errors(folder / f"{files[form]}.onnx") for form in left}
    rounds = _in_turns(runs, stream)
    row["ms"] = {name: round(statistics.median(times), 4) for name, times in rounds.items()}
    row["least_ms"] = {name: round(min(times), 4) for name, times in rounds.items()}
    row["ratio"] = {
        name: round(statistics.median(a / b for a, b in zip(rounds["fp16"], times, strict=True)), 3)
        for name, times in rounds.items()
        if name != "fp16"
    }
    return row


def _engine(path: Path, batch: int, candidates: int) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        model = onnx.load(path)
        for info in model.graph.input:
            info.type.tensor_type.shape.dim[0].dim_value = batch
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        fixed = Path(scratch) / "fixed.onnx"
        onnx.save(model, fixed)
        target = f"sm_{open_device().capability}"
        return tw.compile(
            fixed, target=target, precision="fp16", verify=False, cache=None, candidates=candidates
        )


def _feeds(path: Path, batch: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    feeds = {}
    for info in onnx.load(path, load_external_data=False).graph.input:
        tensor = info.type.tensor_type
        shape = [batch, *(dim.dim_value for dim in tensor.shape.dim[1:])]
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            feeds[info.name] = random.standard_normal(shape).astype(np.float32)
        else:
            high = 2 if "mask" in info.name else 1 if "type" in info.name else 30000
            feeds[info.name] = random.integers(high - 1 if "mask" in info.name else 0, high, shape)
    return feeds


def _compared(path: Path) -> dict[str, Any]:
    """How many numbers of the outputs differ from the simulator's, in float32 and batch 1."""
    model = onnx.load(path)
    feeds = _feeds(path, 1)
    expected, _ = simulated(model, feeds)
    engine = tw.compile(model, target=f"sm_{open_device().capability}", verify=False, cache=None)
    found = engine.run(feeds)
    return {
        "numbers": sum(array.size for array in expected.values()),
        "different": sum(int((found[n] != array).sum()) for n, array in expected.items()),
    }


def _errors(path: Path) -> dict[str, float]:
    """Largest differences from float64 by the largest value: of the engine, of float32 in NumPy."""
    model = onnx.load(path)
    feeds = _feeds(path, 1)
    graph = Model.load(model, DecisionLog()).view()
    exact, narrow = (reference(graph, feeds, wide=wide) for wide in (True, False))
    found = _engine(path, 1, 1).run(feeds)

    def worst(arrays: dict[str, Any]) -> float:
        return max(float(np.abs(arrays[n] - x).max() / np.abs(x).max()) for n, x in exact.items())

    return {"engine": worst(found), "float32": worst(narrow)}


def _in_turns(runs: dict[str, Any], stream: Any) -> dict[str, list[float]]:
    counts = {name: max(3, int(ROUND_MS / _ms(run, 3, stream))) for name, run in runs.items()}
    rounds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(ROUNDS):
        for k in range(len(names)):
            name = names[(number + k) % len(names)]
            rounds[name].append(_ms(runs[name], counts[name], stream))
    return rounds


def _ms(run: Any, count: int, stream: Any) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        run()
        start.record()
        for _ in range(count):
            run()
        stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop) / count)


# --- products -------------------------------------------------------------------------------------


def products(tiles: int) -> list[dict[str, Any]]:
    """A square product of each pair of types, by its first tiles, in turns."""
    chains, found = {}, []
    for name, types in TYPES.items():
        kernel = narrow_product(SIZE, SIZE, SIZE, *types)
        for tile in ranked_tiles(kernel, (), True)[:tiles]:
            chains[name, tile.text] = _chain(kernel, tile)
    rounds: dict[Any, list[float]] = {key: [] for key in chains}
    for _ in range(ROUNDS):
        for key, (chain, context, *_) in chains.items():
            rounds[key].append(float(np.median(chain.times_us(context.own_stream, 1, 1))))
    for (name, tile), times in rounds.items():
        time = statistics.median(times)
        different = chains[name, tile][-1]
        found.append(
            {
                "types": name,
                "tile": tile,
                "us": round(time, 1),
                "least_us": round(min(times), 1),
                "tera": round(2 * SIZE**3 / time / 1e6, 1),
                **({} if different is None else {"numbers": ROWS * SIZE, "different": different}),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def _chain(kernel: Kernel, tile: Any) -> tuple[Any, ...]:
    store = CudaStore(DecisionLog(), constants={"b", "factor"}, clusters=True, tile=tile)
    call = store.call(kernel)
    arch = f"sm_{open_device().capability}"
    code = {f"{k}.{arch}.cubin": compile_text(t, arch).cubin for k, t in store.texts.items()}
    specs = {b.name: TensorSpec(name=b.name, dtype=b.dtype, shape=b.shape) for b in kernel.buffers}
    outputs = tuple(specs[b.name] for b in kernel.outputs)
    inputs = tuple(specs[b.name] for b in kernel.inputs)
    segment = Segment(calls=(call,), inputs=inputs, outputs=outputs, internal=())
    program = Program(inputs=(), outputs=outputs, steps=(segment,))
    random = np.random.default_rng(0)
    feeds = {b.name: _values(random, b) for b in kernel.inputs}
    executor = CudaExecutor({k: feeds[k] for k in store.constants}, code, open_device())
    record: list[Launched] = []
    (out,), _ = executor.recorded(record).run(program, {"a": feeds["a"]}, {})
    context = record[0].context
    turn = (context.plan.steps, context.addresses(record[0].buffers))
    chain = Chain(context.launcher, [turn] * 4, context.own_stream)
    return chain, context, executor, record, _different(feeds, out)


def _different(feeds: dict[str, Any], out: Any) -> int | None:
    """How many numbers of some rows are not those of the requantisation rule; None of floats."""
    if feeds["a"].dtype.kind not in "iu":
        return None
    rows = np.linspace(0, SIZE - 1, ROWS).astype(int)
    sums = feeds["a"][rows].astype(np.float64) @ feeds["b"].astype(np.float64).T  # exact
    whole = np.rint(sums.astype(np.float32) * feeds["factor"]) + 3
    return int((out[rows] != np.clip(whole, 0, 255).astype(np.uint8)).sum())


def _values(random: np.random.Generator, own: Any) -> Any:
    """Random bits for integers; normal numbers for floats, the same in all rows."""
    shape = [dim.const for dim in own.shape]
    if own.dtype.is_integer:
        kind = own.dtype.numpy
        return random.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape, dtype=kind)
    scale = 1e-3 if own.name == "factor" else 1.0
    if len(shape) == 1:
        return (scale * random.standard_normal(shape)).astype(own.dtype.numpy)
    row = random.standard_normal((64, shape[1])).astype(np.float32).astype(own.dtype.numpy)
    return np.ascontiguousarray(np.tile(row, (shape[0] // 64, 1)))


if __name__ == "__main__":
    main()
