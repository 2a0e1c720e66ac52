"""``tilewright quantize``: makes models of few bits, and looks through those of others."""

from pathlib import Path
from typing import Any

import typer

from tilewright.cli import console
from tilewright.cli.lint import show_findings
from tilewright.cli.options import parse_sizes, refuse_unused, warn_of_threads
from tilewright.cli.outputs import check_beside
from tilewright.cli.quantize_request import QuantizeRequest
from tilewright.cli.request import verb_of
from tilewright.core.whole_file import whole_file


def quantize(request: QuantizeRequest) -> None:
    """Quantise a model to 8 bits, as ONNX that other runtimes run too; or find faults of one.

    Calibration data set the ranges of activations: they should resemble what the model will see.
    With --sensitivity each node is quantised alone and left out alone, and its error is split into
    clipping, rounding, saturation and bias shift. With --weights activations stay in float. With
    --lint the exit code is 1 when there is an error among the findings.
    """
    if request.lint:
        _lint(request)
    elif request.output is None:
        raise typer.BadParameter("say what to do: -o OUT.onnx, or --lint")
    else:
        _write(request, request.output)


def _lint(request: QuantizeRequest) -> None:
    vain = "with --lint nothing is quantised"
    given = {"-o": request.output, "--data": request.data, "--html": request.html}
    named = [name for name, value in given.items() if value is not None]
    named += [_option(name) for name in request.options() if name != "threads"]
    refuse_unused(*((True, name, vain) for name in named))
    refuse_unused(
        (
            request.threads is not None and request.board is not None,
            "--threads",
            "--board is a GPU",
        )
    )
    sizes = parse_sizes(request.dim)
    show_findings(request.model, sizes, request.board, request.threads, request.as_json)


def _option(name: str) -> str:
    """An option of ``tilewright.quantize`` as it is called on the command line."""
    special = {"per_channel": "--per-tensor", "preprocessing": "--mean"}
    return special.get(name, "--" + name.replace("_", "-"))


def _write(request: QuantizeRequest, output: Path) -> None:
    refuse_unused(
        (request.board is not None, "--board", "it prices findings of --lint"),
        (bool(request.dim), "--dim", "sizes are those of the data"),
    )
    warn_of_threads(request.threads)
    data = (request.data, request.eval_data, request.labels)
    check_beside(output, (request.model,), (*data, request.html))
    if request.html is not None:
        check_beside(request.html, (request.model,), data)

    import tilewright as tw
    from tilewright.cli.progress import stages

    with stages(request.model.name, quiet=request.quiet) as progress:
        found = tw.quantize(request.model, request.data, progress=progress, **request.options())
    found.save(output)
    if request.html is not None:
        from tilewright.report.quantization_page import quantization_page

        page = quantization_page(
            request.model.name, found.summary, found.decisions, found.sensitivity, found.front
        )
        with whole_file(request.html) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    _report(output, found, request.as_json)


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


quantize_model = verb_of(QuantizeRequest, quantize)
