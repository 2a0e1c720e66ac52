"""Makes what executes a network: Tilewright, and ONNX Runtime to compare with.

ONNX file -> ``Prepared``: a ``Runner``, the seconds it took to make, the metadata of the file.
Guarantees: both run on as many threads as asked for, in fp32.
Not here: what the networks are for (reader).
"""

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.core.errors import BadTarget, CorruptEngine
from tilewright.demo.reader import Arrays, Feeds, Runner

PRECISION = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A network ready to run; ``how`` says where it comes from."""

    run: Runner
    prepare_s: float
    how: str
    file: Path
    metadata: Mapping[str, str] = field(default_factory=dict)


Prepare = Callable[[Path, int, Path], Prepared]  # model, threads, folder for engine files


def prepare_tilewright(model: Path, threads: int, folder: Path) -> Prepared:
    """Loads the engine of a network from ``folder``; compiles and saves it where there is none."""
    start = time.perf_counter()
    file = engine_file(folder, model)
    engine, how = load_engine(file, threads), "loaded"
    if engine is None:
        engine = tw.compile(model, target="cpu", precision=PRECISION, threads=threads)
        engine.save(file)
        how = "compiled"
    seconds = time.perf_counter() - start
    return Prepared(run=engine.run, prepare_s=seconds, how=how, file=file, metadata=engine.metadata)


def engine_file(folder: Path, model: Path) -> Path:
    """Where the engine of a network is kept."""
    return folder / f"{model.stem}.tw"


def forget_engines(folder: Path, models: Sequence[Path]) -> None:
    """Removes the engines of networks, so that they are compiled again."""
    for model in models:
        engine_file(folder, model).unlink(missing_ok=True)


def load_engine(file: Path, threads: int) -> tw.Engine | None:
    """Loads an engine that this version made for this machine, None where there is none."""
    if not file.is_file():
        return None
    try:
        engine = tw.load(file, threads=threads)
    except (CorruptEngine, BadTarget):
        return None
    is_ours = engine.info.get("tilewright") == tw.__version__
    return engine if is_ours and engine.info.get("precision") == PRECISION else None


def prepare_onnxruntime(model: Path, threads: int, folder: Path) -> Prepared:
    """Opens a network in ONNX Runtime, with all of its optimisations."""
    del folder  # it keeps no files
    ort: Any = import_onnxruntime()
    start = time.perf_counter()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors only: these models make it warn
    session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    seconds = time.perf_counter() - start

    def run(feeds: Feeds) -> Arrays:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    metadata = dict(session.get_modelmeta().custom_metadata_map)
    return Prepared(run=run, prepare_s=seconds, how="opened", file=model, metadata=metadata)


def import_onnxruntime() -> object:
    """Returns the module ``onnxruntime``.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise tw.UserError(
            "onnxruntime is not installed",
            remedy="pip install 'tilewright[demo]', or use --with tilewright",
        ) from None


PREPARE: Mapping[str, Prepare] = {
    "tilewright": prepare_tilewright,
    "onnxruntime": prepare_onnxruntime,
}


def version_of(runtime: str) -> str:
    """Returns the version of a runtime in ``PREPARE``."""
    return tw.__version__ if runtime == "tilewright" else version(runtime)
