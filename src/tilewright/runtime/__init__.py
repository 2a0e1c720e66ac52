"""Engines at run time: file, memory, executor, control flow.  No onnx, no compiler."""

from tilewright.runtime.engine import Engine, load

__all__ = ["Engine", "load"]
