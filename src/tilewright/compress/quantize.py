"""``tilewright.quantize``: a float model and data in, a model of 8 or 4 bits in ONNX out.

Input -> Output: a model, calibration data and options -> ``Quantized``.
Guarantees: the caller's model is not changed; nothing is written.
Not here: the stages (job), what each node costs (evaluate), weights alone (weight_only), running
integers (compiler).
"""

from __future__ import annotations

from typing import Any, Unpack

from tilewright.compress import arguments
from tilewright.compress.arguments import Arguments
from tilewright.compress.contract import check_none_left
from tilewright.compress.evaluate import Evaluation, check_scorable, evaluate
from tilewright.compress.job import Job, prepare
from tilewright.compress.options import make_options
from tilewright.compress.quantized import Quantized
from tilewright.compress.weight_only import quantize_weights
from tilewright.report.quantization import Front, Sensitivity


def quantize(model: Any, data: Any = None, **options: Unpack[Arguments]) -> Quantized:
    """Quantises a model to 8 bits, or its weights alone to 8 or 4.

    Args:
        model: a path, the bytes of an ONNX file, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: to calibrate with: a folder of pictures or arrays, ``.npy``, ``.npz``, an iterable of
            feeds, or a function that returns one. About 100 samples are enough for most models;
            dynamic activations and weights alone need none.
        options: see ``tilewright.compress.arguments.Arguments``.

    Returns:
        The model in ONNX, with QuantizeLinear and DequantizeLinear, and its decisions.

    Raises:
        InvalidModel, UnsupportedOp: the model cannot be read.
        BadOption: an option is unknown or contradicts another, or nothing can be quantised.
        BadData: data that cannot be calibrated with.
        BudgetNotMet: no choice with a node on integers keeps the budget.
        ContractBreach: ``require`` asks for more than can be quantised.
    """
    arguments.check_names(options)
    common = arguments.part(options, (*arguments.DATA, "exclude", "require"))
    if options.get("weights") is not None:
        vain = "weights alone are quantised"
        arguments.refuse_vain(options, (*arguments.NUMBERS, *arguments.SCORES), vain)
        return quantize_weights(model, data, **common, **arguments.part(options, arguments.SMALL))
    arguments.refuse_vain(options, arguments.SMALL, "it is of weights=")
    return _on_integers(model, data, options)


def _on_integers(model: Any, data: Any, given: Arguments) -> Quantized:
    """Weights and activations."""
    wanted = Evaluation.of(**arguments.part(given, arguments.SCORES))
    options = make_options(**arguments.part(given, (*arguments.NUMBERS, "exclude", "require")))
    if wanted is not None:
        check_scorable(options)
    job = prepare(model, data, options, **arguments.part(given, arguments.DATA))
    if wanted is None:
        return conclude(job)
    preprocessing, threads = given.get("preprocessing"), given.get("threads")
    progress = given.get("progress")
    found, front = evaluate(job, wanted, data, preprocessing, threads, progress)
    return conclude(job, found, front)


def conclude(job: Job, found: Sensitivity | None = None, front: Front | None = None) -> Quantized:
    """Writes the model and counts."""
    left = frozenset(front.points[front.chosen].float_nodes if front is not None else ())
    if front is not None and job.options.all_quantized:
        check_none_left(left, front.budget, job.model.name)
    emitted, kind = job.emit(left), job.options.format
    nodes = [*(layer.node for layer in job.plan.layers), *job.plan.carriers]
    float_bytes = sum(layer.weights.nbytes for layer in job.plan.layers)
    return Quantized(
        model=emitted,
        decisions=tuple(job.log.entries),
        sensitivity=found,
        front=front,
        summary={
            "layers": sum(layer.node not in left for layer in job.plan.layers),
            "carriers": sum(name not in left for name in job.plan.carriers),
            "kept_in_float": [*(name for name, _, _ in job.plan.kept), *sorted(left & set(nodes))],
            "activations": "float8" if kind == "float8" else job.options.activations,
            "weights": f"{kind} per {'channel' if job.options.per_channel else 'tensor'}",
            "calibration": job.options.calibration,
            "samples": 0 if job.seen is None else job.seen.num_samples,
            "size_bytes": len(emitted),
            "float_weight_bytes": float_bytes,
        },
    )
