"""Refuse operators that nobody knows and calls that their operators do not allow.

Input -> Output: a model without functions -> nothing, or an error.
Guarantees: every operator is known; ``UnsupportedOp`` lists all that are not, with their nodes;
for operators with an ONNX schema the counts of inputs and outputs and the attributes hold.
Not here: element types and shapes (graph.shapes).
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from tilewright.core.errors import InvalidModel, UnsupportedOp
from tilewright.core.plural import plural
from tilewright.graph.walk import all_nodes, node_label

Known = Callable[[str, str, int], bool]
_OWN_DOMAIN = "tilewright"
_MAX_LISTED = 8
# Below this opset only operators that have not changed since are known: nobody exports such models
# any more, and the version converter of ONNX brings them up.
_OLDEST_REWRITTEN = 6


def known_to_onnx(domain: str, op_type: str, opset: int) -> bool:
    """Whether ONNX defines the operator at that version of its domain."""
    return domain == _OWN_DOMAIN or schema(domain, op_type, opset) is not None


def schema(domain: str, op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Returns ONNX's definition of an operator, or None when it has none."""
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def check_nodes(model: ir.Model, known: Known | None = None, *, file: str | None = None) -> None:
    """Checks every node.

    Raises:
        UnsupportedOp: operators that ``known`` (by default: ONNX) does not have, all at once.
        InvalidModel: a call with wrong inputs, outputs or attributes.
    """
    check_known(model, known, file=file)
    for node in all_nodes(model.graph):
        found = schema(node.domain, node.op_type, _version(node, model))
        if found is not None:
            _check_call(node, found, file)


def check_known(model: ir.Model, known: Known | None = None, *, file: str | None = None) -> None:
    """Lists every operator that cannot be executed.

    Raises:
        UnsupportedOp: there are some.
    """
    known = known or known_to_onnx
    users: dict[tuple[str, str, int], list[str]] = {}
    answers: dict[tuple[str, str, int], bool] = {}
    for node in all_nodes(model.graph):
        key = (node.domain, node.op_type, _version(node, model))
        if key not in answers:
            answers[key] = known(*key) and not _too_old(*key)
        if not answers[key]:
            users.setdefault(key, []).append(node.name or "?")
    if not users:
        return
    texts = []
    for (domain, op_type, version), nodes in users.items():
        more = f" and {len(nodes) - _MAX_LISTED} more" if len(nodes) > _MAX_LISTED else ""
        texts.append(
            f"{domain or 'ai.onnx'}.{op_type} (opset {version}) in "
            + ", ".join(nodes[:_MAX_LISTED])
            + more
        )
    raise UnsupportedOp(
        f"{plural(len(users), 'operator')} without support:\n    " + "\n    ".join(texts),
        operators=tuple(f"{domain or 'ai.onnx'}.{op}" for domain, op, _ in users),
        file=file,
        node=next(iter(users.values()))[0] if len(users) == 1 else None,
        remedy="convert the model: onnx.version_converter.convert_version(model, 17)"
        if any(_too_old(*key) for key in users)
        else "export with standard operators, or give it a body (a model-local function)",
    )


def _too_old(domain: str, op_type: str, opset: int) -> bool:
    """Whether an old operator has changed before the oldest version that normalize rewrites."""
    if domain != "" or opset >= _OLDEST_REWRITTEN:
        return False
    old, new = schema("", op_type, opset), schema("", op_type, _OLDEST_REWRITTEN)
    return old is not None and (new is None or old.since_version != new.since_version)


def _version(node: ir.Node, model: ir.Model) -> int:
    return node.version if node.version is not None else model.opset_imports.get(node.domain, 1)


def _check_call(node: ir.Node, found: onnx.defs.OpSchema, file: str | None) -> None:
    def fail(message: str) -> None:
        raise InvalidModel(
            message,
            file=file,
            node=node_label(node),
            remedy=f"see the definition of {node.op_type}, opset {found.since_version}",
        )

    if found.deprecated and onnx.defs.get_schema(node.op_type, node.domain).deprecated:
        fail(f"{node.op_type} was removed in opset {found.since_version}")
    for kind, given, least, most in (
        ("inputs", len(node.inputs), found.min_input, found.max_input),
        ("outputs", len(node.outputs), found.min_output, found.max_output),
    ):
        if not least <= given <= most:
            fail(f"{node.op_type} has {given} {kind}; it takes {_range(least, most)}")
    for index, value in enumerate(node.inputs):
        formal = found.inputs[min(index, len(found.inputs) - 1)] if found.inputs else None
        if value is None and formal is not None:
            single = onnx.defs.OpSchema.FormalParameterOption.Single
            if formal.option == single:
                fail(f"input {index} ({formal.name}) of {node.op_type} is required but absent")
    for name, attribute in node.attributes.items():
        expected = found.attributes.get(name)
        if expected is None:
            fail(f"{node.op_type} has no attribute {name!r}")
        elif _code(expected.type) != attribute.type.value:
            fail(f"attribute {name!r} is {attribute.type}, expected {expected.type}")
    for name, expected in found.attributes.items():
        if expected.required and name not in node.attributes:
            fail(f"{node.op_type} needs the attribute {name!r}")


def _code(kind: object) -> int:
    """The AttributeProto code of a schema's attribute type (nanobind enums are opaque to mypy)."""
    code: int = kind.value  # type: ignore[attr-defined]
    return code


def _range(least: int, most: int) -> str:
    if least == most:
        return str(least)
    return f"{least} or more" if most > 1000 else f"{least} to {most}"
