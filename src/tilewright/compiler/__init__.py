"""Models to engines: options, the pipeline, verification and benchmarks.

Guarantees: importing the package alone loads nothing heavy, so that workers start quickly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.compiler.build import compile
    from tilewright.compiler.options import Require

_HOMES = {"Require": "tilewright.compiler.options", "compile": "tilewright.compiler.build"}

__all__ = ["Require", "compile"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
