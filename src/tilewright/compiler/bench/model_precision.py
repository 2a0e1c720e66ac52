"""What a model computes in by itself, in a word.

Input -> Output: an ONNX file -> ``int8`` where it has quantised operators, else ``fp32``.
Not here: what a runtime makes of it (peers).
"""

from __future__ import annotations

from pathlib import Path

from tilewright.compiler.bench.peers.opened import EXACT
from tilewright.graph.facade import as_written

_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits")


def model_precision(path: Path) -> str:
    """The word.

    Raises:
        InvalidModel: it is none that can be read.
    """
    types = {node.op_type for node in as_written(path).nodes}
    found = any(
        one in _QUANTISED or one.startswith("QLinear") or one.endswith("Integer") for one in types
    )
    return "int8" if found else EXACT
