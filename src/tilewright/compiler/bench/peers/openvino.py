"""OpenVINO on the CPU, for latency."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tilewright.compiler.bench.peers.opened import EXACT, Bound, Opened, import_peer
from tilewright.compiler.feeds import Arrays, InputSpec
from tilewright.core.errors import BadOption

# By default it lowers the precision on some processors, and quantises activations of some layers.
_HINTS = {EXACT: "f32", "bf16": "bf16"}


def settings_of(precision: str) -> dict[str, str]:
    """What keeps it at a precision."""
    hint = _HINTS[precision]
    return {"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def open_openvino(model: Path, threads: int, precision: str = EXACT) -> Opened:
    """Compiles a model; it is kept from lowering the precision further than asked for.

    Raises:
        BadOption: it is not installed, or does not keep the precision.
    """
    ov = import_peer("openvino")
    chosen = settings_of(precision)
    config = {
        **chosen,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.compile_model(os.fspath(model), "CPU", config)
    _check_exact(compiled.get_property("INFERENCE_PRECISION_HINT").to_string(), _HINTS[precision])
    _check_exact(str(compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")), "0")
    inputs = []
    for port in compiled.inputs:
        dims = [dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()]
        dtype = np.dtype(port.get_element_type().to_dtype()).name
        inputs.append(InputSpec.of(port.get_any_name(), dtype, dims))

    def bind(feeds: Arrays) -> Bound:
        request = compiled.create_infer_request()
        # The tensors stay where they are: looking at names and copying takes small networks longer
        # than running them.
        kept = [np.array(feeds[port.get_any_name()], order="C") for port in compiled.inputs]
        for number, array in enumerate(kept):
            request.set_input_tensor(number, ov.Tensor(array, shared_memory=True))
        names = [port.get_any_name() for port in compiled.outputs]

        def run() -> None:
            assert kept  # its memory is read
            request.infer(share_outputs=True)

        def outputs() -> Arrays:
            found = (request.get_output_tensor(number).data for number in range(len(names)))
            return dict(zip(names, found, strict=True))

        return Bound(run, outputs)

    settings = ", ".join(f"{name}={value}" for name, value in chosen.items())
    return Opened(
        version=version("openvino"),
        inputs=inputs,
        bind=bind,
        settings=settings,
        precision=precision,
    )


def _check_exact(found: str, wanted: str) -> None:
    if found != wanted:
        raise BadOption(
            f"openvino computes with {found} where {wanted} was asked for",
            remedy="use another version of it, or leave it out of --against",
        )
