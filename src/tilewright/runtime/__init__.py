"""Engines at run time: file, memory, executor, control flow.  Imports neither onnx nor the compiler."""

from tilewright.runtime.engine import Engine, load

__all__ = ["Engine", "load"]
