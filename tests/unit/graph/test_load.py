"""Importing: what is refused, how the refusal reads, and what a loaded model looks like."""

import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import AttributeProto, TensorProto, helper

from tilewright.core.errors import InvalidModel, UnsupportedOp, UserError
from tilewright.core.record import DecisionLog
from tilewright.graph.load import load_model, view
from unit.graph.models import model_of, node, tensor_info


def relu() -> onnx.ModelProto:
    return model_of([node("Relu", ["x"], ["y"])])


def with_weight() -> onnx.ModelProto:
    return model_of([node("Add", ["x", "w"], ["y"])], weights={"w": np.ones(2, dtype=np.float32)})


# --- sources --------------------------------------------------------------------------------------


def test_every_kind_of_source_gives_the_same_graph(tmp_path: Path) -> None:
    model = with_weight()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    views = [
        view(load_model(source))
        for source in (
            path,
            str(path),
            model.SerializeToString(),
            model,
            onnx_ir.serde.deserialize_model(model),
        )
    ]
    assert [[n.op_type for n in v.nodes] for v in views] == [["Add"]] * 5
    for v in views:
        np.testing.assert_array_equal(v.initializers["w"], np.ones(2, dtype=np.float32))


def test_the_given_model_is_not_changed() -> None:
    model = model_of(
        [node("Add", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])],
        inputs=[tensor_info("x"), tensor_info("w")],
        weights={"w": np.ones(2, dtype=np.float32)},
    )
    before = model.SerializeToString(deterministic=True)
    load_model(model)
    assert model.SerializeToString(deterministic=True) == before
    own = onnx_ir.serde.deserialize_model(model)
    load_model(own)
    assert onnx_ir.serde.serialize_model(own).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello, this is no model at all", "not an ONNX model"),
        (b"PK\x03\x04 and more", "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (relu().SerializeToString()[:-3], "truncated|no operator set"),
    ],
)
def test_garbage_is_refused_with_file_and_remedy(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=says) as caught:
        load_model(path)
    assert caught.value.file == str(path)
    assert caught.value.remedy


def test_paths_that_are_no_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", "a\0b"):
        with pytest.raises(InvalidModel):
            load_model(path)
    with pytest.raises(InvalidModel, match="an object of type int is no model"):
        load_model(3)  # type: ignore[arg-type]


def test_a_file_beyond_protobufs_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)  # sparse: takes no space
    with pytest.raises(InvalidModel, match="2 GiB") as caught:
        load_model(path)
    assert "save_as_external_data" in str(caught.value)


# --- versions -------------------------------------------------------------------------------------


def test_a_newer_opset_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="ai.onnx 29"):
        load_model(model_of([node("Relu", ["x"], ["y"])], opset=29))


def test_old_operators_that_changed_are_refused_and_others_are_not() -> None:
    with pytest.raises(UnsupportedOp, match=r"Relu \(opset 5\)") as caught:
        load_model(model_of([node("Relu", ["x"], ["y"])], opset=5))
    assert "convert_version" in str(caught.value)
    load_model(model_of([node("Transpose", ["x"], ["y"])], opset=5))


def test_an_operator_set_must_be_imported() -> None:
    model = relu()
    del model.opset_import[:]
    with pytest.raises(InvalidModel, match="no operator set"):
        load_model(model)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(InvalidModel, match="ai.onnx"):
        load_model(model)


def test_a_newer_ir_version_is_refused() -> None:
    model = relu()
    model.ir_version = 99
    with pytest.raises(UnsupportedOp, match="IR version 99"):
        load_model(model)


# --- structure ------------------------------------------------------------------------------------


def broken(case: str) -> onnx.ModelProto:
    x_to_y = node("Relu", ["x"], ["y"], name="last")
    match case:
        case "cycle":
            return model_of(
                [
                    node("Add", ["x", "b"], ["a"], name="n1"),
                    node("Neg", ["a"], ["b"], name="n2"),
                    x_to_y,
                ]
            )
        case "defined twice":
            return model_of(
                [node("Abs", ["x"], ["t"], name="n1"), node("Neg", ["x"], ["t"]), x_to_y]
            )
        case "input redefined":
            return model_of([node("Neg", ["x"], ["x"], name="n1"), x_to_y])
        case "undefined":
            return model_of([node("Add", ["x", "ghost"], ["y"], name="n1")])
        case "output undefined":
            return model_of([x_to_y], outputs=["y", "ghost"])
        case "no outputs":
            return model_of([x_to_y], outputs=[])
        case "unnamed output":
            return model_of([x_to_y], outputs=["y", ""])
        case "unnamed input":
            return model_of([x_to_y], inputs=[tensor_info("x"), tensor_info("")])
        case "input twice":
            return model_of([x_to_y], inputs=[tensor_info("x"), tensor_info("x")])
        case "input without type":
            return model_of([x_to_y], inputs=[onnx.ValueInfoProto(name="x")])
        case "unknown element type":
            return model_of([x_to_y], inputs=[tensor_info("x", dtype=77)])
        case "negative dim":
            return model_of([x_to_y], inputs=[tensor_info("x", (-5,))])
        case "no operator":
            return model_of([node("", ["x"], ["y"])])
        case "too many inputs":
            return model_of([node("Relu", ["x", "x"], ["y"], name="n1")])
        case "absent required input":
            return model_of([node("Add", ["x", ""], ["y"], name="n1")])
        case "unknown attribute":
            return model_of([node("Relu", ["x"], ["y"], name="n1", speed=3)])
        case "attribute of another type":
            return model_of([node("Softmax", ["x"], ["y"], name="n1", axis=1.5)])
        case "absent required attribute":
            return model_of([node("Concat", ["x", "x"], ["y"], name="n1")])
        case "attribute twice":
            model = model_of([node("Softmax", ["x"], ["y"], name="n1", axis=0)])
            model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
            return model
        case "attribute without type":
            model = model_of([node("Softmax", ["x"], ["y"], name="n1", axis=0)])
            model.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED
            return model
        case "reference outside of a function":
            model = model_of([node("Softmax", ["x"], ["y"], name="n1", axis=0)])
            model.graph.node[0].attribute[0].ref_attr_name = "axis"
            return model
        case "nested too deeply":
            return deep(30)
    raise KeyError(case)


def deep(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([node("Neg", ["x"], ["o0"])], "inner", [], [tensor_info("o0", None)])
    for level in range(1, depth):
        name = f"o{level}"
        branch = node("If", ["c"], [name], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([branch], "inner", [], [tensor_info(name, None)])
        if graph.ByteSize() > 50_000:  # two branches double it: keep one from here on
            del graph.node[0].attribute[1]
    outer = node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
    return model_of([outer], inputs=[tensor_info("x"), tensor_info("c", (), TensorProto.BOOL)])


BROKEN = (
    "cycle",
    "defined twice",
    "input redefined",
    "undefined",
    "output undefined",
    "no outputs",
    "unnamed output",
    "unnamed input",
    "input twice",
    "input without type",
    "unknown element type",
    "negative dim",
    "no operator",
    "too many inputs",
    "absent required input",
    "unknown attribute",
    "attribute of another type",
    "absent required attribute",
    "attribute twice",
    "attribute without type",
    "reference outside of a function",
    "nested too deeply",
)


@pytest.mark.parametrize("case", BROKEN)
def test_contradictions_are_refused(case: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        load_model(broken(case))
    assert caught.value.remedy
    assert caught.value.file == "<ModelProto>"


def test_a_cycle_is_named() -> None:
    with pytest.raises(InvalidModel, match=r"n1 \(Add\) -> n2 \(Neg\)|n2 \(Neg\) -> n1 \(Add\)"):
        load_model(broken("cycle"))


def test_names_that_are_not_text_are_refused() -> None:
    data = relu().SerializeToString().replace(b"Relu", b"Re\xff\xfe")
    with pytest.raises(InvalidModel, match="UTF-8"):
        load_model(data)


def test_all_unknown_operators_are_listed_at_once() -> None:
    model = model_of(
        [
            node("Frobnicate", ["x"], ["a"], name="first"),
            node("Special", ["a"], ["b"], name="second", domain="com.example"),
            node("Frobnicate", ["b"], ["y"], name="third"),
        ],
        domains=["com.example"],
    )
    with pytest.raises(UnsupportedOp) as caught:
        load_model(model)
    assert caught.value.operators == ("ai.onnx.Frobnicate", "com.example.Special")
    for name in ("first", "second", "third"):
        assert name in str(caught.value)


def test_known_decides_which_operators_pass() -> None:
    with pytest.raises(UnsupportedOp, match="Relu"):
        load_model(relu(), known=lambda domain, op, opset: False)  # noqa: ARG005
    model = model_of([node("Special", ["x"], ["y"], domain="d")], domains=["d"])
    load_model(model, known=lambda domain, op, opset: (domain, op, opset) == ("d", "Special", 1))


def test_a_domain_must_be_imported() -> None:
    model = model_of([node("Special", ["x"], ["y"], domain="d", name="n1")])
    with pytest.raises(InvalidModel, match="not imported") as caught:
        load_model(model)
    assert "n1" in (caught.value.node or "")


def test_map_types_are_refused() -> None:
    value = onnx.ValueInfoProto(name="x")
    value.type.map_type.key_type = TensorProto.STRING
    with pytest.raises(UnsupportedOp, match="map"):
        load_model(model_of([node("Relu", ["x"], ["y"])], inputs=[value]))


# --- what is accepted -----------------------------------------------------------------------------


def test_unsorted_nodes_are_sorted() -> None:
    model = model_of([node("Neg", ["a"], ["y"]), node("Abs", ["x"], ["a"])])
    assert [n.op_type for n in view(load_model(model)).nodes] == ["Abs", "Neg"]


def test_inputs_with_initialisers_become_constants_and_unused_inputs_stay() -> None:
    model = model_of(
        [node("Add", ["x", "w"], ["y"])],
        inputs=[tensor_info("x"), tensor_info("w"), tensor_info("unused")],
        weights={"w": np.ones(2, dtype=np.float32)},
    )
    log = DecisionLog()
    seen = view(load_model(model, log=log))
    assert [value.name for value in seen.inputs] == ["x", "unused"]
    assert [(entry.stage, entry.subject) for entry in log.entries] == [("load", "w")]


def test_inputs_and_weights_may_be_outputs_and_repeated_outputs_are_merged() -> None:
    model = model_of(
        [node("Relu", ["x"], ["y"])],
        outputs=["y", "x", "w", "y"],
        weights={"w": np.ones(2, dtype=np.float32)},
    )
    log = DecisionLog()
    seen = view(load_model(model, log=log))
    assert [value.name for value in seen.outputs] == ["y", "x", "w"]
    assert [entry.subject for entry in log.entries] == ["y"]


def test_unnamed_dims_are_not_taken_for_equal() -> None:
    inputs = [tensor_info("x", (None, "n", "2*n", -1)), tensor_info("z", (None, "n", "?", 0))]
    seen = view(load_model(model_of([node("Relu", ["x"], ["y"])], inputs=inputs)))
    shapes = [[str(dim) for dim in value.shape or ()] for value in seen.inputs]
    assert shapes == [["`x.d0`", "n", "2*n", "`x.d3`"], ["`z.d0`", "n", "`z.d2`", "0"]]


def test_hostile_dim_names_do_not_explode() -> None:
    text = "*".join(f"(a{k}+b{k})" for k in range(60))
    start = time.monotonic()
    inputs = [tensor_info("x", (text,))]
    seen = view(load_model(model_of([node("Relu", ["x"], ["y"])], inputs=inputs)))
    assert seen.inputs[0].shape is not None
    assert seen.inputs[0].shape[0].as_symbol() == text
    assert time.monotonic() - start < 30  # the product would have 2^60 terms


def test_names_are_unique_over_sub_graphs() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, ["x"], ["t"])], op, [], [tensor_info("t", None)])

    model = model_of(
        [
            node("Abs", ["x"], ["t"]),
            node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Relu")),
        ],
        inputs=[tensor_info("x"), tensor_info("c", (), TensorProto.BOOL)],
        outputs=["y", "t"],
    )
    seen = view(load_model(model))
    inner = [seen.nodes[1].attribute(name) for name in ("then_branch", "else_branch")]
    names = [seen.nodes[0].outputs[0], *(graph.nodes[0].outputs[0] for graph in inner)]
    assert names[0] == "t"
    assert len(set(names)) == 3
    assert [graph.outputs[0].name for graph in inner] == names[1:]


def test_a_large_constant_of_shape_is_not_allocated() -> None:
    model = model_of(
        [node("ConstantOfShape", ["s"], ["y"])],
        weights={"s": np.asarray([2**40, 2**20], dtype=np.int64)},
    )
    assert len(view(load_model(model)).nodes) == 1


def test_every_error_is_a_user_error() -> None:
    assert issubclass(InvalidModel, UserError)
    assert issubclass(UnsupportedOp, UserError)
