"""Verbs with many options: the fields of a dataclass become the options of a command.

Input -> Output: a dataclass with annotated fields, a function of it -> a function whose parameters
are these fields, as typer reads them.
Not here: what options mean (one module a verb), options that verbs share (options).
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

Request = TypeVar("Request")


def verb_of(request: type[Request], run: Callable[[Request], None]) -> Callable[..., None]:
    """The verb, with the help text of ``run``."""

    def verb(**given: Any) -> None:
        run(request(**given))

    hints = get_type_hints(request, include_extras=True)
    parameters = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(request)  # type: ignore[arg-type]
    ]
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {name: hints[name] for name in hints}
    verb.__doc__, verb.__name__ = run.__doc__, run.__name__
    return verb
