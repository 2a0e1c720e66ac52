"""Tiles of products on an NVIDIA GPU: error against PyTorch first, then time of each.

    python bench/cuda_tiles.py OUT.json [--only TEXT] [--near 2.5]

A time is that of one of 20 equal launches in a graph, its data in the L2 cache if it fits.
Needs PyTorch for the reference and for the library's time (cuBLAS, cuDNN), and tests/ on the path.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilewright.codegen.cuda import deep_tile, tma_tile
from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.operands import sizes_of
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.compiler.cuda_kernels import CudaStore
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import Kernel
from tilewright.runtime.cuda.driver import open_device
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.cuda.graph import Chain
from tilewright.runtime.program import Program, Segment, TensorSpec
from unit.codegen.cuda.contractions import convolution, feeds_of, product

PRODUCTS = (
    *((128, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (1152, 384))),
    *((1024, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072))),
    *((8192, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072))),
    *((3136, n, k) for n, k in ((64, 256), (256, 64), (128, 256))),
    *((784, n, k) for n, k in ((512, 128), (128, 512), (512, 256))),
    *((196, n, k) for n, k in ((1024, 256), (256, 1024), (1024, 512))),
    *((49, n, k) for n, k in ((2048, 512), (512, 2048))),
    *((25088, n, k) for n, k in ((64, 256), (256, 64))),
    *((6272, n, k) for n, k in ((512, 128), (128, 512))),
    *((1568, n, k) for n, k in ((1024, 256), (256, 1024))),
    *((392, n, k) for n, k in ((2048, 512), (512, 2048))),
    *((200704, n, k) for n, k in ((64, 256), (256, 64))),
    *((12544, n, k) for n, k in ((1024, 256), (256, 1024))),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
WINDOWS = tuple(
    (batch, channels, size)
    for batch in (1, 8, 64)
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7))
)


def main() -> None:
    """Measures every shape and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--near", type=float, default=2.5, help="leave out what is predicted slower"
    )
    args = parser.parse_args()
    kernels = {f"product {m} {n} {k}": product(m, n, k, b_flip=True) for m, n, k in PRODUCTS}
    kernels |= {
        f"window {b} {c} {s}": convolution((b, c, s, s), c, 3, pad=1) for b, c, s in WINDOWS
    }
    rows = []
    for name, kernel in kernels.items():
        if args.only in name:
            rows.append(_measure(name, kernel, args.near))
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "tiles"}), flush=True)
    device = open_device()
    document = {"bench": "cuda_tiles", "device": device.name, "driver": device.driver_version}
    args.out.write_text(json.dumps({**document, "shapes": rows}) + "\n")


def _measure(name: str, kernel: Kernel, near: float) -> dict[str, Any]:
    sizes = sizes_of(kernel)
    assert sizes is not None
    numbers = (sizes.rows, sizes.columns, sizes.depth)
    if name.startswith("product"):
        tiles = [(tma_tile.predict_us(t, *numbers), t) for t in tma_tile.candidates(*numbers)]
    else:
        deep = deep_tile.candidates(*numbers, 1, split=True)
        tiles = [(deep_tile.predict_us(t, *numbers, 1), t) for t in deep]
    limit = near * min(time for time, _ in tiles)
    tiles = [item for item in tiles if item[0] <= limit]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda item: _compiled(kernel, item[1]), tiles))
    feeds = feeds_of(kernel)
    expected, library = _reference(feeds)
    found = []
    for (predicted, tile), (store, code) in zip(tiles, made, strict=True):
        error, time = _run(kernel, store, code, feeds, expected)
        found.append([round(time, 2), round(predicted, 2), error, tile.text])
    found.sort()
    guess = min(found, key=lambda row: row[1])
    return {
        "shape": name,
        "best": found[0],
        "chosen": guess,
        "library_us": round(library, 2),
        "worst_error": max(row[2] for row in found),
        "tiles": found,
    }


def _compiled(kernel: Kernel, tile: DeepTile | TmaTile) -> tuple[CudaStore, dict[str, bytes]]:
    weights = {b.name for b in kernel.inputs} & {"b", "c", "w"}
    store = CudaStore(DecisionLog(), constants=weights, clusters=True, tile=tile)
    store.call(kernel)
    return store, {
        f"{k}.sm_90.cubin": compile_text(t, "sm_90").cubin for k, t in store.texts.items()
    }


def _run(
    kernel: Kernel, store: CudaStore, code: dict[str, bytes], feeds: dict[str, Any], expected: Any
) -> tuple[float, float]:
    call = store.call(kernel)
    specs = {b.name: TensorSpec(name=b.name, dtype=b.dtype, shape=b.shape) for b in kernel.buffers}
    outputs = tuple(specs[b.name] for b in kernel.outputs)
    segment = Segment(
        calls=(call,),
        inputs=tuple(specs[b.name] for b in kernel.inputs),
        outputs=outputs,
        internal=(),
    )
    program = Program(inputs=(), outputs=outputs, steps=(segment,))
    weights = {k: v for k, v in feeds.items() if k in store.constants}
    others = {k: v for k, v in feeds.items() if k not in weights}
    executor = CudaExecutor(weights, code, open_device())
    record: list[Launched] = []
    (out,), _ = executor.recorded(record).run(program, others, {})
    context = record[0].context
    turn = (context.plan.steps, context.addresses(record[0].buffers))
    chain = Chain(context.launcher, [turn] * 20, context.own_stream)
    time = float(np.median(chain.times_us(context.own_stream, 8, 2)))
    chain.close()
    executor.release()
    difference = torch.from_numpy(out).cuda().float() - expected
    return float((difference.abs().max() / expected.abs().max()).cpu()), time


def _reference(feeds: dict[str, Any]) -> tuple[Any, float]:
    on_gpu = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    if "a" in feeds:
        a, b = on_gpu["a"], on_gpu["b"]
        expected = (a.float() @ b.float().T + on_gpu["c"].float()).relu()
        return expected, _graph_us(lambda: a @ b.T)
    x = on_gpu["x"].permute(0, 3, 1, 2)
    w = on_gpu["w"].permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(x.float(), w.float(), padding=1).permute(0, 2, 3, 1)
    return expected, _graph_us(lambda: torch.nn.functional.conv2d(x, w, padding=1))


def _graph_us(work: Any) -> float:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            work()
    times = []
    for _ in range(8):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(stop) / 20)
    return float(np.median(times))


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    main()
