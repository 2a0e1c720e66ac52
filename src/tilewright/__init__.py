"""Tilewright compiles neural networks to the roofline of the hardware that they run on.

``tilewright.compile(model)`` -> ``Engine``; ``tilewright.load(path)`` -> ``Engine``;
``tilewright.quantize(model, data)`` -> ``Quantized``.
Guarantees: importing this package loads no heavy dependency; each name loads what it needs when it
is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.compiler import Require as Require
    from tilewright.compiler import compile as compile
    from tilewright.compress.pictures import Preprocessing as Preprocessing
    from tilewright.compress.quantize import quantize as quantize
    from tilewright.compress.quantized import Quantized as Quantized
    from tilewright.core.errors import UserError as UserError
    from tilewright.core.record import Decision as Decision
    from tilewright.core.record import Measurement as Measurement
    from tilewright.runtime import Engine as Engine
    from tilewright.runtime import load as load

__version__ = "0.1.0"

_HOMES = {
    "Decision": "tilewright.core.record",
    "Engine": "tilewright.runtime",
    "Measurement": "tilewright.core.record",
    "Preprocessing": "tilewright.compress.pictures",
    "Quantized": "tilewright.compress.quantized",
    "Require": "tilewright.compiler",
    "UserError": "tilewright.core.errors",
    "compile": "tilewright.compiler",
    "load": "tilewright.runtime",
    "quantize": "tilewright.compress.quantize",
}

__all__ = [
    "Decision",
    "Engine",
    "Measurement",
    "Preprocessing",
    "Quantized",
    "Require",
    "UserError",
    "__version__",
    "compile",
    "load",
    "quantize",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
