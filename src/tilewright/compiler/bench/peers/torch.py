"""PyTorch on the CPU. It does not execute ONNX files, so the package onnx2torch makes a module.

Eager, or through torch's own compiler, which needs a C++ compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tilewright.compiler.bench.peers.opened import EXACT, Bound, Opened, import_peer
from tilewright.compiler.feeds import Arrays, InputSpec
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model


def open_torch(model: Path, threads: int, precision: str = EXACT) -> Opened:
    """Converts a model to a module, which runs eagerly without gradients, in fp32 alone.

    Raises:
        BadOption: torch or onnx2torch is not installed.
    """
    del precision
    return _open(model, threads, "eager", lambda _torch, module: module)


def open_torch_compile(model: Path, threads: int, precision: str = EXACT) -> Opened:
    """Converts a model to a module that ``torch.compile`` compiles with its weights frozen.

    Raises:
        BadOption: torch or onnx2torch is not installed.
    """
    del precision
    return _open(model, threads, "torch.compile, freezing", _compiled)


def _compiled(torch: Any, module: Any) -> Any:
    torch._inductor.config.freezing = True
    return torch.compile(module)


def _open(model: Path, threads: int, mode: str, prepare: Callable[[Any, Any], Any]) -> Opened:
    torch = import_peer("torch")
    converter = import_peer("onnx2torch")
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    interface = Model.load(model, DecisionLog()).original
    module = prepare(torch, converter.convert(os.fspath(model)).eval())
    inputs = [
        InputSpec.of(value.name, value.dtype, value.shape)
        for value in interface.inputs
        if value.shape is not None
    ]
    order = [value.name for value in interface.inputs]
    names = [value.name for value in interface.outputs]

    def bind(feeds: Arrays) -> Bound:
        tensors = [torch.from_numpy(feeds[name]) for name in order]

        def run() -> Any:
            with torch.inference_mode():
                return module(*tensors)

        def outputs() -> Arrays:
            results: Any = run()
            several = results if isinstance(results, list | tuple) else [results]
            return {name: one.numpy() for name, one in zip(names, several, strict=True)}

        return Bound(run, outputs)

    return Opened(
        version=f"{version('torch')} with onnx2torch {version('onnx2torch')}",
        inputs=inputs,
        bind=bind,
        settings=f"{mode}, float32_matmul_precision=highest",
    )
