"""The options of ``tilewright quantize``, and what their texts mean.

Text of the command line -> ``QuantizeRequest`` -> options of ``tilewright.quantize``, only those
that were given. Raises ``typer.BadParameter`` (exit code 2) on bad text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.options import Dims, Json, Model, Quiet, Threads, parse_list

Text = str | None
_PIXELS = ("mean", "std", "size", "colour", "layout")
_AS_THEY_ARE = (
    *(
        "format",
        "calibration",
        "percentile",
        "activations",
        "remedies",
        "require",
        "limit",
        "threads",
    ),
    *("eval_data", "labels", "eval_limit", "min_sqnr", "weights", "block"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """What was asked for; None: not given."""

    model: Model
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The ONNX file to write.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="About 100 samples to calibrate with: a folder of pictures or of .npz files, an "
            ".npz (inputs by name) or a .npy, a sample a row.",
        ),
    ] = None
    mean: Annotated[
        Text, typer.Option(metavar="X[,X,X]", help="Pictures: subtracted from 0 .. 255.")
    ] = None
    std: Annotated[
        Text, typer.Option(metavar="X[,X,X]", help="Pictures: what that is divided by.")
    ] = None
    size: Annotated[
        Text, typer.Option(metavar="HxW", help="Pictures: crop and resize; by default the model's.")
    ] = None
    colour: Annotated[Text, typer.Option(help="Pictures: RGB (default), BGR or L.")] = None
    layout: Annotated[Text, typer.Option(help="Pictures: NCHW (default) or NHWC.")] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Samples to calibrate with at most.")] = (
        None
    )
    format: Annotated[
        Text,
        typer.Option(help="int8 (default), or float8 (e4m3), which GPUs from sm_90 on multiply."),
    ] = None
    calibration: Annotated[
        Text,
        typer.Option(help="Ranges: minmax (default), moving-average, percentile, mse or entropy."),
    ] = None
    percentile: Annotated[
        float | None, typer.Option(help="With --calibration percentile: share inside, 99.99.")
    ] = None
    activations: Annotated[
        Text,
        typer.Option(help="uint8 (default), int8 (symmetric), or dynamic: ranges of each run."),
    ] = None
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One weight scale a layer, not one a channel.")
    ] = False
    remedies: Annotated[
        Text,
        typer.Option(
            help="auto (default), none, or some of equalize,smooth,gptq,adaround,bias-correction."
        ),
    ] = None
    exclude: Annotated[Text, typer.Option(metavar="NODES", help="Nodes to leave in float.")] = None
    require: Annotated[
        Text,
        typer.Option(help="quantized: fail where a node that computes would stay in float."),
    ] = None
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Find out which node hurts, and why.")
    ] = False
    eval_data: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="What to score on; by default the calibration data."),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Classes of --eval-data: columns file and label."),
    ] = None
    eval_limit: Annotated[
        int | None, typer.Option(min=1, help="Samples to score on at most: 64, with a budget 1000.")
    ] = None
    max_drop: Annotated[
        Text,
        typer.Option(
            metavar="X[%]",
            help="How much the metric may drop, as 0.5%: nodes stay in float where that is needed.",
        ),
    ] = None
    min_sqnr: Annotated[
        float | None,
        typer.Option(metavar="DB", help="Least signal to noise of the outputs instead, in dB."),
    ] = None
    prove: Annotated[
        bool,
        typer.Option(
            "--prove", help="With a budget: build and time every choice next to the chosen one."
        ),
    ] = False
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a report with the front drawn.")
    ] = None
    weights: Annotated[
        Text,
        typer.Option(help="int8 or int4: weights alone; --data then serve to round them well."),
    ] = None
    block: Annotated[
        int | None, typer.Option(help="With --weights: rows of weights that share a scale, 32.")
    ] = None
    wide: Annotated[
        Text,
        typer.Option(
            metavar="NODES",
            help="With --weights int4: nodes that get 8 bits; auto (default): the last ones and, "
            "with --data, those that lose most; none.",
        ),
    ] = None
    lint: Annotated[
        bool, typer.Option("--lint", help="Report faults of a model that is quantised already.")
    ] = False
    dim: Dims = None
    board: Annotated[
        Text, typer.Option(help="With --lint: a GPU to price for, not this machine.")
    ] = None
    threads: Threads = None
    quiet: Quiet = False
    as_json: Json = False

    def options(self) -> dict[str, Any]:
        """Options of ``tilewright.quantize`` that were given."""
        found = {name: getattr(self, name) for name in _AS_THEY_ARE}
        found["preprocessing"] = self._preprocessing()
        found["exclude"] = None if self.exclude is None else parse_list(self.exclude)
        found["wide"] = None if self.wide is None else _names_or_rule(self.wide)
        found["max_drop"] = None if self.max_drop is None else _share(self.max_drop)
        found["per_channel"] = False if self.per_tensor else None
        found["sensitivity"] = self.sensitivity or None
        found["prove"] = self.prove or None
        return {name: value for name, value in found.items() if value is not None}

    def pixels(self) -> dict[str, str | None]:
        """What was said of pictures, by the option's name."""
        return {name: getattr(self, name) for name in _PIXELS}

    def _preprocessing(self) -> Any:
        """The same, read; None for nothing."""
        if all(value is None for value in self.pixels().values()):
            return None
        if self.mean is None or self.std is None:
            raise typer.BadParameter("pictures need both --mean and --std, as --mean 127 --std 128")
        from tilewright.compress.pictures import Preprocessing

        return Preprocessing(
            mean=_numbers("--mean", self.mean),
            std=_numbers("--std", self.std),
            size=_size(self.size),
            colour=self.colour or "RGB",
            layout=self.layout or "NCHW",
        )


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(word) for word in parse_list(text)]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is no number, as 127 or 124,117,104") from None


def _names_or_rule(text: str) -> str | list[str]:
    return text if text in ("auto", "none") else parse_list(text)


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
