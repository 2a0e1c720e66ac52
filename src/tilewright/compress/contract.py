"""The contract ``quantized``: no node that computes stays in float without being told to.

Input -> Output: what stays in float and why -> nothing, or ``ContractBreach`` with every node.
Not here: contracts of engines (compiler.contracts).
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.compiler.contracts import breach
from tilewright.compress.layers import EXCLUDED, Plan
from tilewright.core.plural import plural


def check_quantized(plan: Plan, file: str) -> None:
    """Refuses nodes in float, but for those that were excluded by name.

    Raises:
        ContractBreach: there are some.
    """
    left = [one for one in plan.kept if one[2] != EXCLUDED]
    if left:
        raise breach(
            f"quantized is required, but {plural(len(left), 'node')} would stay in float",
            [f"{node} ({op_type}): {reason}" for node, op_type, reason in left],
            remedy="exclude these nodes by name, replace them in the model, or drop the contract",
            file=file,
        )


def check_none_left(nodes: Collection[str], budget: str, file: str) -> None:
    """Refuses nodes that a budget leaves in float.

    Raises:
        ContractBreach: there are some.
    """
    if nodes:
        raise breach(
            f"quantized is required, but {plural(len(nodes), 'node')} would stay in float by the "
            f"budget ({budget})",
            sorted(nodes),
            remedy="allow a greater loss, or drop the contract",
            file=file,
        )
