"""A decoder in the form of Llama with random weights: a token after 2047, and a prompt of 2048.

    python bench/cuda_llama.py OUT.json [--only decode] [--tiny] [--commit HASH]

Engines and torch (eager and compiled, each as a CUDA graph) in turns, as in ``cuda_table``; outputs
are compared with the same network in float64 first. The floor of a token is its bytes (weights,
keys and values) at the copy bandwidth of one H200, that of a prompt its products at the rate of
large ones (4.2 TB/s and 790 TFLOP/s; docs/cuda.md).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import llama
import numpy as np
import torch
from cuda_table import TOLERANCE, Contest, _document, _largest
from llama_torch import Decoder

import tilewright as tw
from tilewright.runtime.cuda.driver import open_device

BYTES_S, FLOPS = 4.2e12, 790e12


class LlamaContest(Contest):
    """All contenders of one model."""

    def __init__(self, shape: llama.Shape, weights: dict[str, Any], name: str, model: Any) -> None:
        torch.set_grad_enabled(False)
        self.stream = torch.cuda.Stream()
        tokens, past = (1, shape.longest - 1) if name == "decode" else (shape.longest, 0)
        feeds = llama.feeds_of(shape, tokens, past)
        start = time.perf_counter()
        engine = tw.compile(
            model, target=f"sm_{open_device().capability}", precision="fp16", verify=False
        )
        compiled_s = time.perf_counter() - start
        there = engine.to_device(feeds)
        self._engine, self._feeds, self._there = engine, feeds, there
        handle = self.stream.cuda_stream
        expected = [
            t.double().reshape(-1).cpu()
            for t in Decoder(shape, weights, torch.float64)(*_inputs(feeds, torch.float64))
        ]
        torch.cuda.empty_cache()
        self.runs: dict[str, Any] = {"ours": lambda: engine.run_on_device(there, stream=handle)}
        errors = {"ours": _largest([t.reshape(-1).cpu() for t in self._outputs(engine)], expected)}
        module = Decoder(shape, weights, torch.float16)
        inputs = _inputs(feeds, torch.float16)
        self._kept = [module, inputs]
        for peer in ("eager", "compile"):
            function = module
            if peer == "compile":
                function = torch.compile(module, fullgraph=True, dynamic=False)
            graph, outputs = self._captured(function, inputs)
            self.runs[peer] = graph.replay
            graph.replay()
            torch.cuda.synchronize()
            errors[peer] = _largest([t.reshape(-1).cpu() for t in outputs], expected)
        self.facts = {
            "kernels": engine.summary["kernels"],
            "compiled_s": round(compiled_s, 1),
            "errors": errors,
            "is_right": errors["ours"] <= TOLERANCE["fp16"],
            "floor_ms": round(_floor_ms(shape, weights, tokens, past), 3),
        }

    def profile(self) -> str:
        """Times of our kernels."""
        return str(self._engine.profile(self._feeds, runs=10))


def _inputs(feeds: dict[str, Any], dtype: torch.dtype) -> list[Any]:
    """Inputs of the torch module; caches get room for the new token."""
    found = []
    for name, array in feeds.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array)).cuda()
        if name.startswith("past"):
            room = tensor.new_zeros((*tensor.shape[:2], 1, tensor.shape[3]))
            tensor = torch.cat([tensor, room], dim=2).to(dtype)
        found.append(tensor)
    return found


def _floor_ms(shape: llama.Shape, weights: dict[str, Any], tokens: int, past: int) -> float:
    matrices = {n: a for n, a in weights.items() if a.ndim == 2 and n not in ("cos", "sin")}
    products = sum(a.size for n, a in matrices.items() if n not in ("embedding", "head"))
    if past:
        cache = 2 * 2 * shape.layers * shape.cache * past
        return (2 * (products + weights["head"].size) + cache) / BYTES_S * 1e3
    attention = 2 * shape.layers * shape.width * tokens * tokens  # half of all pairs, two products
    return (2 * tokens * products + attention) / FLOPS * 1e3


def main() -> None:
    """Measures both models and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tiny", action="store_true", help="a small network, for a test")
    parser.add_argument("--profile", action="store_true", help="print times of our kernels too")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    args.precision = "fp16"
    shape = llama.TINY if args.tiny else llama.Shape()
    weights = llama.weights_of(shape)
    rows = []
    for name, model in llama.models(shape, weights):
        if args.only and name != args.only:
            continue
        contest = LlamaContest(shape, weights, name, model)
        rows.append({"name": f"Llama 1B {name}", **contest.facts, **contest.times()})
        if args.profile:
            print(contest.profile())
        del contest
        torch.cuda.empty_cache()
        document = {**_document(args, rows), "bench": "cuda_llama"}
        args.out.write_text(json.dumps(document, indent=1) + "\n")
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
