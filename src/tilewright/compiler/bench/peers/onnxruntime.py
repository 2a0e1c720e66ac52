"""ONNX Runtime on the CPU, with all of its optimisations."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from tilewright.compiler.bench.peers.opened import EXACT, Bound, Opened, import_peer
from tilewright.compiler.feeds import Arrays, InputSpec

DTYPE_NAMES = {"float": "float32", "double": "float64"}  # its own, where they differ


def open_onnxruntime(model: Path, threads: int, precision: str = EXACT) -> Opened:
    """Opens a model; its CPU kernels compute in the model's types, whatever is asked for."""
    del precision
    ort = import_peer("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # Some ARM processors would multiply float32 in bfloat16.
    options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "0")
    session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = []
    for value in session.get_inputs():
        onnx_name = value.type.removeprefix("tensor(").removesuffix(")")
        dtype = DTYPE_NAMES.get(onnx_name, onnx_name)
        inputs.append(InputSpec.of(value.name, dtype, value.shape))

    def bind(feeds: Arrays) -> Bound:
        binding = session.io_binding()  # saves small networks a tenth of their time
        for one in inputs:
            value = ort.OrtValue.ortvalue_from_numpy(feeds[one.name])
            binding.bind_ortvalue_input(one.name, value)
        for name in names:
            binding.bind_output(name, "cpu")

        def run() -> None:
            session.run_with_iobinding(binding)

        def outputs() -> Arrays:
            return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))

        return Bound(run, outputs)

    return Opened(
        version=version("onnxruntime"),
        inputs=inputs,
        bind=bind,
        settings="the model's types, ORT_ENABLE_ALL, IOBinding",
    )
