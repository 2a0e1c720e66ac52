"""Symbolic types, shapes and contents of every tensor of a graph in newest-opset form."""

from __future__ import annotations

from tilewright.graph.shapes.infer import Inference, infer

__all__ = ["Inference", "infer"]
