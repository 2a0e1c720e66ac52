"""Models to engines: options, the pipeline, verification and benchmarks."""

from tilewright.compiler.build import compile
from tilewright.compiler.check import verify
from tilewright.compiler.options import Require

__all__ = ["Require", "compile", "verify"]
