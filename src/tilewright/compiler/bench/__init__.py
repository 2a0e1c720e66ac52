"""Compares runtimes on models: every claim of speed rests on it.

``bench(model, options)`` -> ``Comparison``; several of them -> ``BenchReport``.
Rooms: compare (the order of things), contender (their processes), worker (inside of them), peers (a
file a runtime), outputs, results, machine.
"""

from tilewright.compiler.bench.compare import bench, check_request
from tilewright.compiler.bench.options import BenchOptions
from tilewright.compiler.bench.results import BenchReport, Comparison, Timing

__all__ = ["BenchOptions", "BenchReport", "Comparison", "Timing", "bench", "check_request"]
