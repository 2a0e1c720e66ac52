"""Einsum: any equation, as one contraction, or as a sequence of pairwise ones.

    "bij,bjk->bik"       out[b, i, k] = sum_j a[b, i, j] * c[b, j, k]
    "ij,jk,kl->il"       t[i, k] = sum_j ..., out[i, l] = sum_k t[i, k] * c[k, l]
Guarantees: a label that only one operand has and that is summed is summed first; with more than
two operands the pair with the smallest result is contracted next; intermediates are in the compute
type.
Not here: checking the equation against shapes (graph.shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Buffer, Expr
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import dim_index, is_one, sum_over, widen
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers

_ELLIPSIS = "..."
_UNKNOWN_EXTENT = 64  # stands for a symbolic dim when sizes of intermediates are compared


@dataclass(frozen=True, slots=True)
class Term:
    """A buffer with one label for each of its dims."""

    buffer: Buffer
    labels: tuple[str, ...]


def parse_equation(
    equation: str, ranks: Sequence[int]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of each operand's dims and of the output's; dims of an ellipsis are ``.0``, ``.1`` ...

    Raises:
        Unlowerable: the equation does not fit the ranks.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        raise Unlowerable(f"equation {equation!r} has {len(operands)} operands, not {len(ranks)}")
    extra = [
        rank - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0
        for term, rank in zip(operands, ranks, strict=True)
    ]
    widest = max(extra, default=0)
    inputs = [_labels(term, own, widest) for term, own in zip(operands, extra, strict=True)]
    if any(len(labels) != rank for labels, rank in zip(inputs, ranks, strict=True)):
        raise Unlowerable(f"equation {equation!r} does not fit ranks {list(ranks)}")
    if arrow:
        return inputs, _labels(right, widest, widest)
    flat = [label for labels in inputs for label in labels]
    named = sorted(label for label in set(flat) if label[0] != "." and flat.count(label) == 1)
    return inputs, (*(f".{k}" for k in range(widest)), *named)


def _labels(term: str, own: int, widest: int) -> tuple[str, ...]:
    before, dots, after = term.partition(_ELLIPSIS)
    middle = [f".{k}" for k in range(widest - own, widest)] if dots else []
    return (*before, *middle, *after)


def extents_of(terms: Sequence[Term], result: Mapping[str, Dim]) -> dict[str, Dim]:
    """Each label's extent; ``result`` holds those of the output's labels.

    A summed label's dims are equal or 1: a constant other than 1 decides, else the larger dim.
    """
    extents: dict[str, Dim] = {}
    for term in terms:
        for label, dim in zip(term.labels, term.buffer.shape, strict=True):
            known = extents.get(label, dim)
            if dim.is_const and not is_one(dim):
                extents[label] = dim
            elif known.is_const and not is_one(known):
                extents[label] = known
            else:
                extents[label] = known.max(dim)
    return {**extents, **result}


def _read(term: Term, places: Mapping[str, Expr], extents: Mapping[str, Dim]) -> Expr:
    parts = tuple(
        dim_index(places[label], dim, extents[label])
        for label, dim in zip(term.labels, term.buffer.shape, strict=True)
    )
    return widen(term.buffer[parts])


def contraction_body(
    terms: Sequence[Term], labels: Sequence[str], extents: Mapping[str, Dim]
) -> Callable[..., Expr]:
    """``sum over labels that are not in the result of the product of terms``, by result index."""
    summed = list(
        dict.fromkeys(label for term in terms for label in term.labels if label not in labels)
    )

    def body(*index: Expr) -> Expr:
        outer = dict(zip(labels, index, strict=True))

        def inner(*positions: Expr) -> Expr:
            places = {**outer, **dict(zip(summed, positions, strict=True))}
            value = _read(terms[0], places, extents)
            for term in terms[1:]:
                value = value * _read(term, places, extents)
            return value

        return sum_over([extents[label] for label in summed], inner)

    return body


@lowers("Einsum")
def einsum(ctx: Lowering) -> None:
    """Ellipsis, implicit output, diagonals (repeated labels), any number of operands."""
    out = ctx.output()
    if out is None:
        return
    buffers = [ctx.input(position) for position in range(len(ctx.inputs))]
    equation = str(ctx.node.attribute("equation", ""))
    inputs, result = parse_equation(equation, [len(buffer.shape) for buffer in buffers])
    terms = [Term(buffer, labels) for buffer, labels in zip(buffers, inputs, strict=True)]
    extents = extents_of(terms, dict(zip(result, out.shape, strict=True)))
    if len(terms) > 1:
        terms = [
            _presummed(ctx, position, terms, result, extents) for position in range(len(terms))
        ]
    while len(terms) > 2:
        left, right, kept = _cheapest_pair(terms, result, extents)
        merged = _contract(ctx, (terms[left], terms[right]), kept, extents)
        terms = [t for position, t in enumerate(terms) if position not in (left, right)] + [merged]
    body = contraction_body(terms, result, extents)
    ctx.pure(out, lambda *index: body(*index).cast(out.dtype))


def _contract(
    ctx: Lowering, terms: Sequence[Term], labels: tuple[str, ...], extents: Mapping[str, Dim]
) -> Term:
    dtype = compute_type(terms[0].buffer.dtype)
    out = ctx.temporary(dtype, tuple(extents[label] for label in labels))
    return Term(ctx.pure(out, contraction_body(terms, labels, extents)), labels)


def _presummed(
    ctx: Lowering,
    position: int,
    terms: Sequence[Term],
    result: Sequence[str],
    extents: Mapping[str, Dim],
) -> Term:
    """The term with its private summed labels summed, if it has any."""
    term = terms[position]
    others = {label for k, other in enumerate(terms) if k != position for label in other.labels}
    kept = tuple(dict.fromkeys(lab for lab in term.labels if lab in result or lab in others))
    private = set(term.labels) - set(kept)
    if all(is_one(extents[label]) for label in private):
        return term
    return _contract(ctx, (term,), kept, extents)


def _cheapest_pair(
    terms: Sequence[Term], result: Sequence[str], extents: Mapping[str, Dim]
) -> tuple[int, int, tuple[str, ...]]:
    """Positions of the pair with the smallest product, and the labels which that keeps."""
    candidates: list[tuple[int, int, int, tuple[str, ...]]] = []
    for left, right in combinations(range(len(terms)), 2):
        needed = set(result)
        for position, term in enumerate(terms):
            needed |= set(term.labels) if position not in (left, right) else set()
        both = dict.fromkeys((*terms[left].labels, *terms[right].labels))
        kept = tuple(label for label in both if label in needed)
        candidates.append((_size([extents[label] for label in kept]), left, right, kept))
    _, left, right, kept = min(candidates)
    return left, right, kept


def _size(dims: Sequence[Dim]) -> int:
    return product(dim if dim.is_const else _UNKNOWN_EXTENT for dim in dims).const
