"""What ``tilewright quantize --weights`` does: a model with weights of few bits."""

from collections.abc import Sequence
from pathlib import Path

from tilewright.cli import console
from tilewright.core.whole_file import check_output

_BLOCK = 32


def write_small_weights(
    model: Path,
    output: Path,
    weights: str,
    block: int | None,
    exclude: Sequence[str],
    as_json: bool,
) -> None:
    """Writes the model and says how large it is.

    Args:
        model, output: ONNX files.
        weights: ``int8`` or ``int4``.
        block: rows that share a scale.
        exclude: nodes to leave in float.
        as_json: one JSON document instead of lines.
    """
    check_output(output, (model,))

    from tilewright.compress.weight_only import quantize_weights

    found = quantize_weights(model, weights=weights, block=block or _BLOCK, exclude=exclude)
    found.save(output)
    if as_json:
        console.write_json({"summary": found.summary, "decisions": found.decisions})
        return
    for decision in found.decisions:
        if "kept in float" in decision.chosen:
            console.write(f"{decision.subject}: {decision.chosen} ({decision.rejected[0][1]})")
    size = found.summary["bytes"] / 1e6
    console.write(f"{output}: {found.summary['layers']} layers in {weights}, {size:.1f} MB")
