"""Second moments of what matrix products read, in as many walks over the data as memory needs.

Input -> Output: a model, its products, batches -> for each walk, the products and the moments of
what they read.
Guarantees: the moments of one walk take at most ``WALK_BYTES`` (one product's, if these alone are
more); products that read the same value share them.
Not here: what is done with them (gptq), convolutions (calibrate).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compress.calibrate import Progress, Variety, runner
from tilewright.compress.data import Batches, num_rows
from tilewright.compress.layers import Layer
from tilewright.compress.moments import Moments
from tilewright.core.errors import BadOption
from tilewright.graph.quantizable import Quantizable

WALK_BYTES = 1 << 30
_MOST_ELEMENTS = 8192  # of a row, whose second moments are a matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One walk over the data.

    Attributes:
        layers: whose inputs were watched.
        moments: by value that they read.
        samples: rows of data.
    """

    layers: Sequence[Layer]
    moments: Mapping[str, Moments]
    samples: int


def walks(
    model: Quantizable,
    layers: Sequence[Layer],
    batches: Batches,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Walk]:
    """Walk by walk, so that the moments of one are gone before the next.

    Raises:
        BadData: data that tell nothing.
        BadOption: data that end after one walk, where several are needed.
    """
    parts = list(_parts(layers))
    if len(parts) > 1 and not batches.again:
        raise BadOption(
            f"{len(parts)} walks over the data are needed, and they end after one",
            remedy="give a list, or a function that returns a new iterator",
        )
    for number, part in enumerate(parts):
        title = "calibrate" if len(parts) == 1 else f"calibrate {number + 1}/{len(parts)}"
        yield _walked(model, part, batches, threads, progress, title)


def _parts(layers: Sequence[Layer]) -> Iterator[list[Layer]]:
    """Layers whose moments fit together, in order."""
    by_source: dict[str, list[Layer]] = {}
    for layer in layers:
        by_source.setdefault(layer.source, []).append(layer)
    part: list[Layer] = []
    taken = 0
    for readers in by_source.values():
        size = 8 * depth_of(readers[0]) ** 2
        if part and taken + size > WALK_BYTES:
            yield part
            part, taken = [], 0
        part, taken = [*part, *readers], taken + size
    yield part


def depth_of(layer: Layer) -> int:
    """Rows of a product's weights."""
    return int(layer.weights.shape[1 if layer.transposed else 0])


def _walked(
    model: Quantizable,
    layers: Sequence[Layer],
    batches: Batches,
    threads: int | None,
    progress: Progress | None,
    title: str,
) -> Walk:
    graph = model.view()
    nodes = {node.name: node for node in graph.nodes}
    inputs = {value.name for value in graph.inputs}
    found: dict[str, Moments] = {}
    for layer in layers:
        if layer.source not in found:
            node = nodes[layer.node]
            found[layer.source] = Moments(layer, node, second=True, most=_MOST_ELEMENTS)
    run = runner(model, [name for name in found if name not in inputs], threads)
    variety, seen = Variety(batches.name), 0
    for feeds in batches:
        values = run(feeds)
        for name, moments in found.items():
            if values[name].size:
                moments.add(values[name])
        variety.add(feeds)
        seen += num_rows(feeds)
        if progress is not None:
            progress(title, seen, batches.num_samples or 0)
    variety.check(seen)
    return Walk(layers=layers, moments=found, samples=seen)
