"""``tilewright run``: runs an engine or a model once on given or random inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Device,
    Dims,
    EngineOrModel,
    Inputs,
    Json,
    Npz,
    Quiet,
    Threads,
    parse_files,
    parse_sizes,
    refuse_unused,
    warn_of_threads,
)
from tilewright.cli.outputs import check_beside
from tilewright.core.errors import BadOption
from tilewright.core.plural import listed
from tilewright.core.recognise import is_engine
from tilewright.core.whole_file import whole_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from tilewright import Engine


def run_model(
    model: EngineOrModel,
    inputs: Inputs = None,
    npz: Npz = None,
    random: Annotated[
        bool, typer.Option("--random", help="Random values for inputs that are not given.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of --random, by default 0.")] = None,
    dim: Dims = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.npz", help="Write the outputs here."),
    ] = None,
    threads: Threads = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an engine file, or a model that is compiled first, and describe its outputs."""
    files, sizes = parse_files(inputs), parse_sizes(dim)
    warn_of_threads(threads)
    refuse_unused(
        (seed is not None and not random, "--seed", "only --random makes inputs up"),
        (bool(sizes) and not random, "--dim", "only --random makes inputs up"),
    )
    if output is not None:
        check_beside(output, (model,), (npz, *files.values()))

    given = read_inputs(files, npz)
    if random:
        check_sizes_given(model, given, sizes)
    engine = open_engine(model, threads, quiet=quiet, device=device)
    feeds = gather_feeds(engine, given, random=random, sizes=sizes, seed=seed or 0)
    outputs = engine.run(feeds)
    if output is not None:
        _write(output, outputs)
    summary = {name: _summarise(value) for name, value in outputs.items()}
    if as_json:
        console.write_json(summary)
        return
    for name, facts in summary.items():
        text = "  ".join(f"{key} {_rounded(value)}" for key, value in facts.items())
        console.write(f"{name}  {text}")


def _rounded(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write(output: Path, outputs: Mapping[str, Any]) -> None:
    from tilewright.compiler.feeds import to_files
    from tilewright.core.npz import save_npz

    arrays, notes = to_files(outputs)
    with whole_file(output) as unfinished:
        save_npz(unfinished, arrays)
    for note in notes:
        console.log(note)
    console.log(f"wrote {output}: {listed(arrays)}")


def open_engine(
    model: Path,
    threads: int | None,
    *,
    verify: bool = True,
    quiet: bool = False,
    device: int | None = None,
) -> "Engine":
    """Loads an engine file, or compiles a model.

    Raises:
        BadOption: a GPU is chosen for a model that is compiled for this machine's CPU.
    """
    import tilewright as tw
    from tilewright.cli.progress import stages

    if is_engine(model):
        return tw.load(model, threads=threads, device=device)
    refuse_unused((device is not None, "--device", "models are compiled for the CPU"))
    with stages(model.name, quiet=quiet) as progress:
        engine = tw.compile(model, threads=threads, verify=verify, progress=progress)
    for note in engine.summary["notes"]:
        console.log(f"note: {note}")
    return engine


def read_inputs(files: Mapping[str, Path], npz: Path | None) -> "dict[str, npt.NDArray[Any]]":
    """Reads the inputs that were given as files; done before a model is compiled for them.

    Raises:
        UserError: a file is missing or holds something else.
        BadOption: an input is in both.
    """
    from tilewright.compiler.feeds import load_npy, load_npz

    given = load_npz(npz) if npz is not None else {}
    if twice := sorted(given.keys() & files.keys()):
        raise BadOption(
            f"{listed(twice)}: given by --input and in {npz}",
            remedy="give each input in one of the two ways",
        )
    given.update((name, load_npy(file)) for name, file in files.items())
    return given


def check_sizes_given(
    model: Path, given: "Mapping[str, npt.NDArray[Any]]", sizes: Mapping[str, int]
) -> None:
    """Sees that random inputs of a model can be made, before it is compiled for them.

    Raises:
        BadOption: a symbolic dim of an input that is not given has no size.
    """
    if is_engine(model) or not model.is_file():
        return
    from tilewright.compiler.feeds import check_sizes
    from tilewright.graph.facade import as_written

    graph = as_written(model)
    missing = [spec for spec in graph.inputs if spec.name not in {*given, *graph.initializers}]
    check_sizes(
        {name for spec in missing for dim in spec.shape or () for name in dim.symbols}, sizes
    )


def gather_feeds(
    engine: "Engine",
    given: "Mapping[str, npt.NDArray[Any]]",
    *,
    random: bool,
    sizes: Mapping[str, int],
    seed: int = 0,
) -> "dict[str, npt.NDArray[Any]]":
    """Fits what ``read_inputs`` gave to an engine, and makes random inputs of the rest if asked to.

    What is still missing or does not fit, the engine reports.

    Raises:
        BadOption: a size is for a dim that no input has, or is not that of a given input; a file
            is of no input.
    """
    from tilewright.compiler.feeds import InputSpec, from_files, random_feeds

    dims = {name for spec in engine.inputs for dim in spec.shape or () for name in dim.symbols}
    if unknown := sorted(set(sizes) - dims):
        remedy = (
            f"the dims are {listed(sorted(dims))}"
            if dims
            else "all sizes are fixed: leave out --dim"
        )
        raise BadOption(f"no input has a dim {listed(unknown)}", remedy=remedy)
    feeds, notes = from_files(dict(given), engine.inputs)
    for note in notes:
        console.log(note)
    names = [spec.name for spec in engine.inputs]
    if strange := [name for name in feeds if name not in names]:
        raise BadOption(
            f"no input is called {listed(strange)}", remedy=f"the inputs are {listed(names)}"
        )
    _check_sizes(engine, feeds, sizes)
    if random:
        missing = [spec for spec in engine.inputs if spec.name not in feeds]
        specs = [
            InputSpec.of(spec.name, spec.dtype, spec.shape)
            for spec in missing
            if spec.shape is not None and spec.container == "tensor"
        ]
        needed = {dim for spec in specs for dim in spec.shape}
        wanted = {name: size for name, size in sizes.items() if name in needed}
        feeds.update(random_feeds(specs, wanted, seed))
    return feeds


def _check_sizes(engine: "Engine", feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuses sizes that are not those of the arrays beside them."""
    from tilewright.compiler.feeds import size_name

    for spec in engine.inputs:
        shape = getattr(feeds.get(spec.name), "shape", ())
        for dim, size in zip(spec.shape or (), shape, strict=False):
            name = size_name(dim)
            wanted = sizes.get(name, size)
            if wanted != size:
                raise BadOption(
                    f"--dim {name}={wanted}, but {spec.name} was given with {name}={size}",
                    remedy=f"leave out --dim {name}",
                )


def _summarise(array: "npt.NDArray[Any] | list[Any] | None") -> dict[str, object]:
    if array is None:
        return {"empty": True}
    if isinstance(array, list):
        return {"sequence": [_summarise(part) for part in array]}
    facts: dict[str, object] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiu":
        values = array.astype("float64")
        facts.update(min=float(values.min()), max=float(values.max()), mean=float(values.mean()))
    return facts
