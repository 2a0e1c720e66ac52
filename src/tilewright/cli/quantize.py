"""``tilewright quantize``: makes 8-bit models, and looks through those of others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import console
from tilewright.cli.lint import show_findings
from tilewright.cli.options import (
    Dims,
    Json,
    Model,
    Quiet,
    Threads,
    parse_list,
    parse_sizes,
    refuse_unused,
    warn_of_threads,
)
from tilewright.cli.small_weights import write_small_weights
from tilewright.core.whole_file import check_output

PIXELS = ("mean", "std", "size", "colour", "layout")


def quantize_model(
    model: Model,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The ONNX file to write.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="About 100 samples to calibrate with: a folder of pictures or of .npz files, an "
            ".npz (inputs by name) or a .npy, a sample a row.",
        ),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="X[,X,X]", help="Pictures: subtracted from 0 .. 255.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="X[,X,X]", help="Pictures: what that is divided by.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Pictures: crop and resize; by default the model's."),
    ] = None,
    colour: Annotated[str | None, typer.Option(help="Pictures: RGB (default), BGR or L.")] = None,
    layout: Annotated[str | None, typer.Option(help="Pictures: NCHW (default) or NHWC.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Samples to calibrate with at most.")
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(help="Ranges: minmax, moving-average, percentile, mse or entropy."),
    ] = "minmax",
    percentile: Annotated[
        float | None, typer.Option(help="With --calibration percentile: share inside, 99.99.")
    ] = None,
    activations: Annotated[
        str,
        typer.Option(help="uint8, int8 (symmetric), or dynamic: ranges found in each run."),
    ] = "uint8",
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One weight scale a layer, not one a channel.")
    ] = False,
    remedies: Annotated[
        str,
        typer.Option(help="auto, none, or some of equalize,smooth,gptq,adaround,bias-correction."),
    ] = "auto",
    exclude: Annotated[
        str | None, typer.Option(metavar="NODES", help="Nodes to leave in float.")
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Find out which node hurts, and why.")
    ] = False,
    eval_data: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="What to score on; by default the calibration data."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Classes of --eval-data: columns file and label."),
    ] = None,
    eval_limit: Annotated[
        int | None, typer.Option(min=1, help="Samples to score on at most, 64.")
    ] = None,
    max_drop: Annotated[
        str | None,
        typer.Option(
            metavar="X[%]",
            help="How much the metric may drop, as 0.5%: nodes stay in float where that is needed.",
        ),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(metavar="DB", help="Least signal to noise of the outputs instead, in dB."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a report with the front drawn.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="int8 or int4: quantise weights alone, for which no data are needed."),
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="With --weights: rows of weights that share a scale, 32.")
    ] = None,
    lint: Annotated[
        bool, typer.Option("--lint", help="Report faults of a model that is quantised already.")
    ] = False,
    dim: Dims = None,
    board: Annotated[
        str | None, typer.Option(help="With --lint: a GPU to price for, not this machine.")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Quantise a model to 8 bits, as ONNX that other runtimes run too; or find faults of one.

    Calibration data set the ranges of activations: they should resemble what the model will see.
    With --sensitivity each node is quantised alone and left out alone, and its error is split into
    clipping, rounding, saturation and bias shift. With --lint the exit code is 1 when there is an
    error among the findings.
    """
    given = {"mean": mean, "std": std, "size": size, "colour": colour, "layout": layout}
    if lint:
        vain = "with --lint nothing is quantised"
        named = {"-o": output, "--data": data, "--limit": limit, "--exclude": exclude}
        pixels = {f"--{name}": value for name, value in given.items()}
        refuse_unused(
            *((value is not None, name, vain) for name, value in (named | pixels).items())
        )
        refuse_unused((sensitivity, "--sensitivity", vain))
        refuse_unused((threads is not None and board is not None, "--threads", "--board is a GPU"))
        show_findings(model, parse_sizes(dim), board, threads, as_json)
        return
    if output is None:
        raise typer.BadParameter("say what to do: -o OUT.onnx, or --lint")
    if weights is not None:
        vain = "with --weights activations stay float"
        named = {"--data": data, "--limit": limit}
        refuse_unused(*((value is not None, name, vain) for name, value in named.items()))
        refuse_unused((percentile is not None, "--percentile", vain))
        refuse_unused((sensitivity, "--sensitivity", vain), (per_tensor, "--per-tensor", vain))
        write_small_weights(model, output, weights, block, parse_list(exclude or ""), as_json)
        return
    refuse_unused((block is not None, "--block", "it is of --weights"))
    refuse_unused(
        (board is not None, "--board", "it prices findings of --lint"),
        (bool(dim), "--dim", "sizes are those of the data"),
        (
            eval_limit is not None and not (sensitivity or max_drop or min_sqnr),
            "--eval-limit",
            "nothing is scored without --sensitivity or a budget",
        ),
    )
    warn_of_threads(threads)
    check_output(output, (model, data, eval_data, labels, html))
    if html is not None:
        check_output(html, (model, data, eval_data, labels))

    import tilewright as tw
    from tilewright.cli.progress import stages
    from tilewright.compress.evaluate import EVAL_LIMIT

    with stages(model.name, quiet=quiet) as progress:
        found = tw.quantize(
            model,
            data,
            calibration=calibration,
            percentile=percentile,
            activations=activations,
            per_channel=not per_tensor,
            remedies=remedies,
            exclude=parse_list(exclude or ""),
            preprocessing=_preprocessing(given),
            limit=limit,
            sensitivity=sensitivity,
            eval_data=eval_data,
            labels=labels,
            eval_limit=eval_limit or EVAL_LIMIT,
            max_drop=None if max_drop is None else _share(max_drop),
            min_sqnr=min_sqnr,
            threads=threads,
            progress=progress,
        )
    found.save(output)
    if html is not None:
        from tilewright.core.whole_file import whole_file
        from tilewright.report.quantization_page import quantization_page

        with whole_file(html) as unfinished:
            unfinished.write_text(
                quantization_page(
                    model.name, found.summary, found.decisions, found.sensitivity, found.front
                ),
                encoding="utf-8",
            )
    _report(output, found, as_json)


def _preprocessing(given: dict[str, str | None]) -> Any:
    """What was said of pictures; None for nothing."""
    if all(value is None for value in given.values()):
        return None
    if given["mean"] is None or given["std"] is None:
        raise typer.BadParameter("pictures need both --mean and --std, as --mean 127 --std 128")
    from tilewright.compress.pictures import Preprocessing

    return Preprocessing(
        mean=_numbers("--mean", given["mean"]),
        std=_numbers("--std", given["std"]),
        size=_size(given["size"]),
        colour=given["colour"] or "RGB",
        layout=given["layout"] or "NCHW",
    )


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(word) for word in parse_list(text)]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is no number, as 127 or 124,117,104") from None


def _share(text: str) -> float:
    """``0.5%`` or ``0.005``."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"--max-drop {text!r} is no share, as 0.5% or 0.005") from None


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, separator, width = text.lower().partition("x")
    if not (separator and height.isdecimal() and width.isdecimal()):
        raise typer.BadParameter(f"--size {text!r} is not HxW, as 224x224")
    return int(height), int(width)


def _report(output: Path, found: Any, as_json: bool) -> None:
    if as_json:
        facts = {"output": output, **found.summary, "sensitivity": found.sensitivity}
        facts["front"] = found.front
        console.write_json({**facts, "decisions": found.decisions})
        return
    from tilewright.report.quantization import quantization_lines

    parts = (found.summary, found.decisions, found.sensitivity, found.front)
    for line in quantization_lines(str(output), *parts):
        console.write(line)
