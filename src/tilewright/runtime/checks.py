"""Sizes of a run, checked before memory is planned for them.

Input -> Output: symbolic dims, sizes of their symbols -> integers, or an error that names the node.
Guarantees: none is negative. A zero border can make the stored size of a value positive although
its own is not, and the product of two negative sizes is positive; so every dim is looked at alone.
Not here: which values there are (compiler.build_program).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.core.errors import InternalError, ShapeMismatch, UserError
from tilewright.core.shape import Dim
from tilewright.runtime.bindings import BINDINGS
from tilewright.runtime.program import (
    Bind,
    Check,
    DimsArg,
    Extent,
    LiteralArg,
    Refuse,
    TensorArg,
    TensorSpec,
)

Value = Callable[[Dim], int]


def failing(
    checks: Iterable[Check], sizes: Mapping[str, int], value: Value | None = None
) -> list[Check]:
    """The guarded checks that fail, which matter only if their guards hold.

    Args:
        value: of a dim of the checks, where it is known already.

    Raises:
        UserError: a check without guards fails.
    """
    found: list[Check] = []
    for check in checks:
        error = error_of(check, sizes, value)
        if error is not None:
            if not check.guards:
                raise error
            found.append(check)
    return found


def error_of(
    check: Check, sizes: Mapping[str, int], value: Value | None = None
) -> UserError | None:
    """A new error, if the check fails."""
    error = _error(check.test, sizes, value or (lambda dim: dim.evaluate(sizes)))
    if error is not None:
        error.node = error.node or check.test.node
    return error


def check_dims(check: Check) -> Sequence[Dim]:
    """The dims that a check looks at."""
    match check.test:
        case Extent():
            return [check.test.dim]
        case Bind():
            return [d for arg in check.test.args if isinstance(arg, DimsArg) for d in arg.dims]
    return []


def arguments(bind: Bind, value: Value, tensor: Callable[[str], Any]) -> list[Any]:
    """What a binding is called with, given the values of dims and tensors by name."""
    args: list[Any] = []
    for arg in bind.args:
        match arg:
            case DimsArg():
                args.append(tuple(map(value, arg.dims)))
            case LiteralArg():
                args.append(arg.value)
            case TensorArg():
                args.append(tensor(arg.name))
    return args


def is_check(bind: Bind) -> bool:
    """Whether a binding only looks at sizes."""
    return not bind.symbols and not any(isinstance(arg, TensorArg) for arg in bind.args)


def shape_of(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor in memory.

    Raises:
        ShapeMismatch: a size would be negative.
    """
    shape = tuple(dim.evaluate(sizes) for dim in spec.shape or ())
    for dim, size in zip(spec.shape or (), shape, strict=True):
        if size < 0:
            raise _negative(spec.name, dim, sizes)
    return shape


def _error(
    test: Extent | Bind | Refuse, sizes: Mapping[str, int], value: Value
) -> UserError | None:
    match test:
        case Extent():
            fits = value(test.dim) >= 0
            return None if fits else _negative(test.value, test.dim, sizes)
        case Refuse():
            return ShapeMismatch(test.message, remedy="feed other sizes")
    try:
        BINDINGS[test.function](*arguments(test, value, _no_tensor))
    except UserError as error:
        return error
    return None


def _no_tensor(name: str) -> Any:
    raise InternalError(f"a check of sizes reads the value {name}")


def _negative(value: str, dim: Dim, sizes: Mapping[str, int]) -> ShapeMismatch:
    used = ", ".join(f"{name} = {sizes[name]}" for name in sorted(dim.symbols))
    return ShapeMismatch(
        f"{value} would have the size {dim} = {dim.evaluate(sizes)} with {used}",
        remedy="feed larger inputs",
    )
