"""Rewrite every node to the newest operator set: later stages know one form of each operator.

Input -> Output: a loaded model of any opset -> the same function, ai.onnx nodes in opset 28 form.
Guarantees: constants are initialisers of the outermost graph; names stay unique; graph inputs and
outputs keep theirs; running it again changes nothing; the result is verified.
Not here: simplification (passes), expansion of functions (functions).
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.core.record import DecisionLog
from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.normalize.constants import gather_constants
from tilewright.graph.normalize.contrib import CONTRIB, DOMAIN
from tilewright.graph.normalize.edit import Edit
from tilewright.graph.normalize.table import RULES
from tilewright.graph.verify import verify
from tilewright.graph.walk import Names, all_graphs

__all__ = ["is_rewritten", "normalize"]


def normalize(model: ir.Model, *, log: DecisionLog | None = None, file: str | None = None) -> None:
    """Brings a model into the newest form, in place.

    Raises:
        UnsupportedOp: an old form that has no equivalent (training outputs of BatchNormalization,
            ``sequence_lens`` of Scan-8).
        InvalidModel: a node that contradicts its own definition.
    """
    log = log if log is not None else DecisionLog()
    names = Names.of(model)
    gather_constants(model, names)
    for graph in list(all_graphs(model.graph)):
        for node in list(graph):
            _modernise(model, graph, node, names, log, file)
    model.opset_imports[""] = NEWEST_OPSET
    verify(model, file=file, after="normalize")


def is_rewritten(domain: str, op_type: str) -> bool:
    """True for operators of other domains that ``normalize`` writes with those of ai.onnx."""
    return domain == DOMAIN and op_type in CONTRIB


def _modernise(
    model: ir.Model,
    graph: ir.Graph,
    node: ir.Node,
    names: Names,
    log: DecisionLog,
    file: str | None,
) -> None:
    if node.domain == DOMAIN and node.op_type in CONTRIB:
        edit = Edit(model=model, graph=graph, node=node, names=names, log=log, file=file)
        CONTRIB[node.op_type](edit)
    if node.domain != "":
        return
    version = (
        node.version if node.version is not None else model.opset_imports.get("", NEWEST_OPSET)
    )
    node.version = version
    for below, rewrite in RULES.get(node.op_type, ()):
        if node.version < below:
            rewrite(Edit(model=model, graph=graph, node=node, names=names, log=log, file=file))
            if node.graph is None:
                return
    node.version = NEWEST_OPSET
