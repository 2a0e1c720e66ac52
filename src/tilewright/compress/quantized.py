"""What a quantisation gives: the model in ONNX, and the record of how it came about.

Not here: making it (quantize, weight_only), showing it (report).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.core.record import Decision
from tilewright.core.whole_file import check_output, whole_file
from tilewright.report.quantization import Front, Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A quantised model.

    Attributes:
        model: the bytes of an ONNX file; ``tilewright.compile`` takes them.
        decisions: what was chosen, in order.
        summary: counts and sizes.
        sensitivity: what each node costs; None where nothing was evaluated.
        front: the choices between integers and float; None without a budget.
    """

    model: bytes
    decisions: tuple[Decision, ...]
    summary: Mapping[str, Any]
    sensitivity: Sensitivity | None = None
    front: Front | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ONNX file.

        Raises:
            CacheError: it cannot be written.
        """
        check_output(path)
        with whole_file(path) as unfinished:
            Path(unfinished).write_bytes(self.model)
