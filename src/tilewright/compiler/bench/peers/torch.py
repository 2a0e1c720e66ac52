"""PyTorch on the CPU. It does not execute ONNX files, so the package onnx2torch makes a module.

Not here: torch's own compiler, which needs a C++ compiler at run time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tilewright.compiler.bench.peers.opened import Opened, import_peer
from tilewright.compiler.feeds import Arrays, InputSpec
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model


def open_torch(model: Path, threads: int) -> Opened:
    """Converts a model to a module, which runs eagerly without gradients.

    Raises:
        BadOption: torch or onnx2torch is not installed.
    """
    torch = import_peer("torch")
    converter = import_peer("onnx2torch")
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    interface = Model.load(model, DecisionLog()).original
    module = converter.convert(os.fspath(model)).eval()
    inputs = [
        InputSpec.of(value.name, value.dtype, value.shape)
        for value in interface.inputs
        if value.shape is not None
    ]
    order = [value.name for value in interface.inputs]
    names = [value.name for value in interface.outputs]

    def bind(feeds: Arrays) -> Callable[[], Arrays]:
        tensors = [torch.from_numpy(feeds[name]) for name in order]

        def run() -> Arrays:
            with torch.inference_mode():
                results: Any = module(*tensors)
            several = results if isinstance(results, list | tuple) else [results]
            return {name: one.numpy() for name, one in zip(names, several, strict=True)}

        return run

    return Opened(
        version=f"{version('torch')} with onnx2torch {version('onnx2torch')}",
        inputs=inputs,
        bind=bind,
        settings="eager, float32_matmul_precision=highest",
    )
