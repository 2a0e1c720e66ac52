"""The same model gives the same bytes: whatever the hash seed, and whatever was compiled before."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from unit.compiler.models import compiled, network, normal
from unit.graph.models import model_of, node, tensor_info


def everything() -> onnx.ModelProto:
    """Kernels of all tactics, views, data-dependent sizes, host steps, a branch and a loop."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "twice"], ["next"], name="body_add"),
            helper.make_node("Identity", ["going"], ["keep"], name="body_keep"),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0, name="body_sum"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
        ],
    )
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["soft"], [name], name=name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for op, name in (("Exp", "then_out"), ("Neg", "else_out"))
    )
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Add", ["h", "b"], ["hb"], name="bias"),
        node("LayerNormalization", ["hb", "g", "b"], ["norm"], name="norm", axis=-1),
        node("Softmax", ["norm"], ["soft"], name="softmax", axis=-1),
        node("Transpose", ["soft"], ["turned"], name="turn", perm=[1, 0]),
        node("Concat", ["turned", "turned"], ["joined"], name="join", axis=1),
        node("CumSum", ["joined", "one"], ["running"], name="running"),
        node("NonZero", ["running"], ["places"], name="places"),
        node("Unique", ["places"], ["unique"], name="unique"),
        node("Mul", ["soft", "soft"], ["twice"], name="square"),
        node("ReduceMax", ["soft"], ["top"], name="top", keepdims=0),
        node("Greater", ["top", "half"], ["high"], name="high"),
        node("If", ["high"], ["chosen"], name="choice", then_branch=then, else_branch=other),
        node("Loop", ["count", "", "soft"], ["last", "totals"], name="loop", body=body),
    ]
    weights = {
        "w": normal(8, 16),
        "b": normal(16),
        "g": normal(16),
        "one": np.array(1, np.int64),
        "half": np.array(0.5, np.float32),
        "count": np.array(3, np.int64),
    }
    return model_of(
        nodes,
        inputs=[tensor_info("x", ("batch", 8))],
        outputs=["unique", "chosen", "last", "totals", "running"],
        weights=weights,
        opset=21,
    )


def another() -> None:
    """Moves every counter of the process, and fills its tables."""
    compiled(network(), verify=False)


def digest(path: Path) -> str:
    """Of the engine's file and of all generated code."""
    engine = compiled(everything(), verify=False)
    engine.save(path)
    code = "".join(f"{key}{text}" for key, text in sorted(engine._parts.sources.items()))
    return hashlib.sha256(path.read_bytes() + code.encode()).hexdigest()


SCRIPT = """
import sys
from pathlib import Path
from unit.compiler import test_determinism as own
if sys.argv[2] == "after another":
    own.another()
print(own.digest(Path(sys.argv[1])))
"""


def test_the_hash_seed_and_the_history_do_not_matter(tmp_path: Path) -> None:
    digests = {digest(tmp_path / "here.tw")}
    for seed, history in (("1", "fresh"), ("4242", "after another")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "engine.tw"), history]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_the_model_above_computes_what_it_should() -> None:
    """So that the digests are those of a working engine."""
    engine = compiled(everything())
    assert engine.summary["max_error"] < 1e-5
    assert {"sequential", "contraction", "row_reduction", "elementwise"} <= {
        decision.chosen.split("(")[0] for decision in engine.decisions if decision.stage == "tactic"
    }
