"""Joins the verbs to one command and turns exceptions into messages and exit codes.

To add a verb: a module with one function, a line in ``VERBS`` and one in ``EXAMPLES``.
Requires: verbs import what is heavy inside their function, so that ``--help`` is quick.
"""

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import tilewright
from tilewright.cli import (
    bench,
    console,
    demo,
    device,
    explain,
    profile,
    quantize,
    run,
    tune,
    verify,
)
from tilewright.cli.compile import compile_model
from tilewright.core.errors import OutOfMemory, UserError

INTERRUPTED = 130

VERBS: dict[str, Callable[..., None]] = {
    "compile": compile_model,
    "run": run.run_model,
    "verify": verify.verify_model,
    "explain": explain.explain_model,
    "profile": profile.profile_model,
    "tune": tune.tune_engine,
    "quantize": quantize.quantize_model,
    "bench": bench.bench_models,
    "device": device.show_device,
    "demo": demo.read_picture,
}

EXAMPLES = {  # shown below each verb's help
    "compile": "compile model.onnx -o model.tw --dim batch=1..8",
    "run": "run model.tw --random --dim batch=2 -o outputs.npz",
    "verify": "verify model.onnx --engine model.tw --npz inputs.npz",
    "explain": "explain model.tw --npz inputs.npz --html report.html",
    "profile": "profile model.tw --npz inputs.npz --trace trace.json",
    "quantize": "quantize model.onnx --data pictures --mean 127 --std 128 -o model_int8.onnx",
    "tune": "tune model.tw --npz inputs.npz --timing-store timings.sqlite",
    "bench": "bench model.onnx --against onnxruntime,openvino --threads 1,2 --dim batch=1",
    "device": "device --board h200 --occupancy regs=64,smem=48KiB,block=256",
    "demo": "demo photo.png --with tilewright",
}


class _Verbs(TyperGroup):
    """Reports what a verb raises; the one place that decides exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb."""
        with console.json_mode("--json" in ctx.args):  # the verb has not been parsed yet
            try:
                return super().invoke(ctx)
            except UserError as error:
                console.print_error(error)
                raise typer.Exit(1) from None
            except OSError as error:
                console.print_error(_explained(error))
                raise typer.Exit(1) from None
            except MemoryError as error:
                remedy = "use smaller sizes, or free some memory"
                console.print_error(OutOfMemory(str(error) or "out of memory", remedy=remedy))
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                console.log("interrupted")
                raise typer.Exit(INTERRUPTED) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        console.write(f"tilewright {tilewright.__version__}")
        raise typer.Exit


def _top_level(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Compile neural networks to the roofline, prove the result, explain the speed."""
    del version  # its callback has acted


def build_app() -> typer.Typer:
    """Returns the command with all of its verbs."""
    app = typer.Typer(
        name="tilewright",
        cls=_Verbs,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_top_level)
    for name, function in VERBS.items():
        example = EXAMPLES.get(name)
        app.command(name, epilog=example and f"Example: tilewright {example}")(function)
    return app


def _explained(error: OSError) -> UserError:
    """What the system refused, at a place that has no better words for it."""
    file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    remedy = "check that the file may be used, and the space on the disk"
    return UserError(error.strerror or str(error), file=file, remedy=remedy)


def run_app() -> int:
    """Runs the command on ``sys.argv`` and returns the exit code."""
    console.open_streams()
    try:
        build_app()()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except OSError as error:  # of the help, the version, or a message on usage
        code = console.lost_stdout(error)
    return console.finish() or code
