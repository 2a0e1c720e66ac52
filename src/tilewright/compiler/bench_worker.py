"""One contender of a benchmark, in a process of its own: ``bench_worker CONTENDER MODEL THREADS``.

Lines of JSON on stdin -> lines of JSON on stdout. It greets with version, precision, seconds of
set-up and input specs; ``check`` runs once and writes the outputs; ``time`` runs a batch.
Guarantees: it uses only as many processors as threads were asked for.
To add a contender: a function that opens a model, and a line in ``OPENERS``.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tilewright.compiler.feeds import Arrays, InputSpec, load_npz, to_files
from tilewright.core.errors import BadOption, InternalError, UserError

DTYPE_NAMES = {"float": "float32", "double": "float64"}  # ONNX Runtime's, where they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model ready to run; ``bind`` makes a run of feeds."""

    version: str
    precision: str
    inputs: list[InputSpec]
    bind: Callable[[Arrays], Callable[[], Arrays]]


def open_tilewright(model: Path, threads: int) -> Opened:
    """Compiles a model, or loads it where it is an engine file."""
    import tilewright as tw

    if model.suffix == ".tw":
        engine = tw.load(model, threads=threads)
    else:
        engine = tw.compile(model, target="cpu", precision="fp32", threads=threads)
    # An input of unknown rank cannot be random: without a file for it the engine says so.
    inputs = [
        InputSpec.of(spec.name, spec.dtype, spec.shape)
        for spec in engine.inputs
        if spec.shape is not None
    ]
    return Opened(
        version=tw.__version__,
        precision="fp32",
        inputs=inputs,
        bind=lambda feeds: lambda: engine.run(feeds),
    )


def open_onnxruntime(model: Path, threads: int) -> Opened:
    """Opens a model in ONNX Runtime with all of its optimisations."""
    ort = _import("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = []
    for value in session.get_inputs():
        onnx_name = value.type.removeprefix("tensor(").removesuffix(")")
        dtype = DTYPE_NAMES.get(onnx_name, onnx_name)
        inputs.append(InputSpec.of(value.name, dtype, value.shape))
    return Opened(
        version=version("onnxruntime"),
        precision="as in the model",
        inputs=inputs,
        bind=lambda feeds: lambda: dict(zip(names, session.run(names, feeds), strict=True)),
    )


def open_openvino(model: Path, threads: int) -> Opened:
    """Compiles a model in OpenVINO for latency; it is kept from lowering the precision."""
    ov = _import("openvino")
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.compile_model(os.fspath(model), "CPU", config)
    inputs = []
    for port in compiled.inputs:
        dims = [dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()]
        dtype = np.dtype(port.get_element_type().to_dtype()).name
        inputs.append(InputSpec.of(port.get_any_name(), dtype, dims))

    def bind(feeds: Arrays) -> Callable[[], Arrays]:
        request = compiled.create_infer_request()
        ports = {port: port.get_any_name() for port in compiled.outputs}
        return lambda: {ports[port]: value for port, value in request.infer(feeds).items()}

    return Opened(
        version=version("openvino"),
        precision=str(compiled.get_property("INFERENCE_PRECISION_HINT")),
        inputs=inputs,
        bind=bind,
    )


def open_torch(model: Path, threads: int) -> Opened:
    """Refuses: torch does not execute ONNX files."""
    del threads
    raise BadOption(
        f"torch does not execute ONNX files, such as {model.name}",
        remedy="compare with onnxruntime or openvino",
    )


OPENERS: dict[str, Callable[[Path, int], Opened]] = {
    "tilewright": open_tilewright,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "torch": open_torch,
}


def serve(contender: str, model: Path, threads: int, answers: TextIO) -> None:
    """Opens the model, then answers requests until stdin ends."""

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        start = time.perf_counter()
        opened = OPENERS[contender](model, threads)
        answer(
            version=opened.version,
            precision=opened.precision,
            setup_s=time.perf_counter() - start,
            inputs=[(spec.name, spec.dtype, spec.shape) for spec in opened.inputs],
        )
        run: Callable[[], Arrays] | None = None
        for line in sys.stdin:
            request = json.loads(line)
            if request["verb"] == "check":
                run = opened.bind(load_npz(Path(request["feeds"])))
                arrays, _ = to_files(run())
                np.savez(request["outputs"], allow_pickle=False, **arrays)
                answer()
            elif run is None:
                raise InternalError("a batch is timed only after a check")
            else:
                answer(samples_us=time_batch(run, request["milliseconds"]))
    except UserError as error:
        answer(error=error.message, remedy=error.remedy)


def tell_of_failures(contender: str, answers: TextIO) -> None:
    """Makes whatever a runtime raises an answer: the parent shows it, without a traceback."""

    def tell(kind: type[BaseException], error: BaseException, trace: object) -> None:
        del trace
        said = next(iter(str(error).strip().splitlines()), "")[:500]
        fields = {
            "error": f"{kind.__name__}: {said}",
            "remedy": f"{contender} cannot open or run this model with these inputs: check both, "
            "or leave it out of --against",
        }
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    sys.excepthook = tell


def time_batch(run: Callable[[], object], milliseconds: float) -> list[float]:
    """Runs once to warm up, then again and again for so long; returns each run's microseconds."""
    run()
    samples_us: list[float] = []
    end = time.perf_counter() + milliseconds / 1e3
    while not samples_us or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        samples_us.append((time.perf_counter() - start) * 1e6)
    return samples_us


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        extra = " (or 'tilewright[bench]')" if name == "onnxruntime" else ""
        remedy = f"pip install {name}{extra}"
        raise BadOption(f"{name} is not installed", remedy=remedy) from None


def _limit_processors(threads: int) -> None:
    """Leaves this process a processor a thread, on different cores first, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    seen: dict[str, int] = {}

    def rank(processor: int) -> tuple[int, int]:
        table = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        core = Path(table).read_text() if Path(table).is_file() else str(processor)
        seen[core] = seen.get(core, 0) + 1
        return seen[core], processor

    ranked = sorted(rank(processor) for processor in sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, [processor for _, processor in ranked[:threads]])


def main() -> None:
    """Runs the worker; stdout is kept for the answers, whatever a runtime prints goes to stderr."""
    contender, model, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends this process
    tell_of_failures(contender, answers)
    _limit_processors(int(threads))
    serve(contender, Path(model), int(threads), answers)


if __name__ == "__main__":
    main()
