"""Engine files keep everything, are the same for the same model, and are refused when damaged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.errors import CacheError, CorruptEngine, UserError
from tilewright.core.recognise import WEIGHTS
from tilewright.runtime import engine_file
from unit.compiler.models import compiled, feeds_of, network, saved

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "network.tw"
    compiled(network()).save(path)
    return path


def _members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(path: Path, members: Members, *, compress: bool = False) -> Path:
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _edited(members: Members, edit: Callable[[dict[str, Any]], None]) -> Members:
    """The members with an edited ``engine.json`` whose hash is right."""
    document = json.loads(members["engine.json"])
    edit(document)
    text = json.dumps(document).encode()
    return {
        **members,
        "engine.json": text,
        "engine.sha256": hashlib.sha256(text).hexdigest().encode(),
    }


# --- whole files ----------------------------------------------------------------------------------


def test_a_loaded_engine_is_the_same(built: Path) -> None:
    engine, loaded = compiled(network()), tw.load(built)
    for batch, height in ((1, 1), (3, 17)):
        feeds = feeds_of(batch, height)
        wanted, got = engine.run(feeds), loaded.run(feeds)
        assert wanted.keys() == got.keys()
        for name, value in wanted.items():
            assert value.dtype == got[name].dtype
            np.testing.assert_array_equal(got[name], value)
    assert loaded.inputs == engine.inputs
    assert loaded.outputs == engine.outputs
    assert loaded.decisions == engine.decisions
    assert loaded.program == engine.program
    assert loaded.info == engine.info
    times = ("seconds", "total_seconds", "notes")
    kept = {name: value for name, value in engine.summary.items() if name not in times}
    assert loaded.summary == kept


def test_equal_builds_give_equal_files(built: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        model = saved(network(), tmp_path / folder)
        tw.compile(model, threads=2, cache=tmp_path / "cache").save(tmp_path / folder / "model.tw")
    one, two = ((tmp_path / folder / "model.tw").read_bytes() for folder in ("one", "two"))
    assert one == two  # the second from the cache, and of a model in another folder
    assert str(tmp_path).encode() not in b"".join(_members(tmp_path / "one" / "model.tw").values())
    tw.load(built).save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == built.read_bytes()


_LOAD = """
import json, sys
import tilewright as tw
engine = tw.load(sys.argv[1])
import numpy as np
engine.run({"x": np.zeros((1, 3, 4, 8), np.float32)})
print(json.dumps(sorted(sys.modules)))
"""


def test_weights_lie_where_words_of_memory_do(built: Path) -> None:
    """Where they do not, it takes twice as long to hash them."""
    with zipfile.ZipFile(built) as archive, built.open("rb") as file:
        file.seek(archive.getinfo(WEIGHTS).header_offset + 26)
        lengths = [int.from_bytes(file.read(2), "little") for _ in range(2)]
        assert (file.tell() + sum(lengths)) % 64 == 0


def test_loading_and_running_needs_neither_onnx_nor_the_compiler(built: Path) -> None:
    command = [sys.executable, "-c", _LOAD, str(built)]
    names = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    foreign = {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "torch", "triton", "typer", "rich"}
    assert foreign.isdisjoint(names)
    ours = {name.split(".")[1] for name in names if name.startswith("tilewright.")}
    assert ours <= {"core", "runtime", "report"}


def test_a_folder_that_is_missing_is_explained(tmp_path: Path) -> None:
    engine = compiled(network(), verify=False)
    with pytest.raises(CacheError, match="no such folder"):
        engine.save(tmp_path / "none" / "engine.tw")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_parts: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    target = tmp_path / "engine.tw"
    target.write_bytes(b"old")
    monkeypatch.setattr(engine_file, "_write", full)
    with pytest.raises(CacheError, match="No space left on device") as caught:
        compiled(network(), verify=False).save(target)
    assert "enough free space" in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["engine.tw"]
    assert target.read_bytes() == b"old"


# --- damaged files --------------------------------------------------------------------------------


def _refused(path: Path, message: str) -> None:
    with pytest.raises(CorruptEngine, match=message) as caught:
        tw.load(path)
    assert str(path) in str(caught.value)


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "engine.tw"
    with pytest.raises(UserError, match="no such file") as caught:
        tw.load(path)
    assert (type(caught.value), caught.value.file) == (UserError, str(path))
    path.write_bytes(b"")
    _refused(path, "not an engine file")
    path.write_bytes(b"text" * 100)
    _refused(path, "not an engine file")
    path.write_bytes(network().SerializeToString())
    _refused(path, "not an engine file")
    _refused(tmp_path, "cannot be read")
    _refused(_zip(tmp_path / "other.zip", {"a.txt": b"a"}), "engine.json is missing")


def test_a_model_is_no_engine_but_may_become_one(tmp_path: Path) -> None:
    with pytest.raises(CorruptEngine, match="not an engine file") as caught:
        tw.load(saved(network(), tmp_path))
    assert "tilewright.compile(path)" in str(caught.value.remedy)


def test_every_truncation_is_refused(built: Path, tmp_path: Path) -> None:
    data = built.read_bytes()
    path = tmp_path / "engine.tw"
    for size in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:size])
        _refused(path, "not an engine file|cannot be read|missing|does not match")


def test_every_flipped_byte_is_refused_or_harmless(built: Path, tmp_path: Path) -> None:
    data = built.read_bytes()
    wanted = tw.load(built).run(feeds_of())
    path = tmp_path / "engine.tw"
    num_refused = 0
    for position in range(0, len(data), max(1, len(data) // 150)):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            engine = tw.load(path)
            assert all((engine.decisions, engine.placements, dict(engine.parts.sources)))
        except CorruptEngine:
            num_refused += 1
            continue
        for name, value in engine.run(feeds_of()).items():  # a time stamp or the like
            np.testing.assert_array_equal(value, wanted[name])
    assert num_refused > 100


@pytest.mark.parametrize("member", ["weights.safetensors", "kernels/driver.o"])
def test_a_changed_member_does_not_match_its_hash(built: Path, tmp_path: Path, member: str) -> None:
    members = _members(built)
    members[member] = members[member][:-1] + bytes([members[member][-1] ^ 1])
    _refused(_zip(tmp_path / "engine.tw", members), f"{member} does not match its hash")
    del members[member]
    _refused(_zip(tmp_path / "engine.tw", members), f"missing members .*{member}")


_TOLD: dict[str, Callable[[tw.Engine], Any]] = {
    "record.json": lambda engine: engine.decisions,
    "kernels/pool.ll": lambda engine: engine.parts.sources["pool"],
}


@pytest.mark.parametrize("member", _TOLD)
@pytest.mark.parametrize("compress", [False, True])
def test_what_only_tells_is_checked_when_it_is_looked_at(
    built: Path, tmp_path: Path, member: str, compress: bool
) -> None:
    members = _members(built)
    members[member] = members[member][:-1] + bytes([members[member][-1] ^ 1])
    path = _zip(tmp_path / "engine.tw", members, compress=compress)
    engine = tw.load(path)
    engine.run(feeds_of())
    path.unlink()  # it was read, and is not needed any more
    with pytest.raises(CorruptEngine, match=f"{member} does not match its hash") as caught:
        _TOLD[member](engine)
    assert caught.value.file == str(path)
    with pytest.raises(CorruptEngine):
        engine.save(tmp_path / "again.tw")
    assert list(tmp_path.iterdir()) == []
    del members[member]
    _refused(_zip(tmp_path / "engine.tw", members), f"missing members .*{member}")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"placements": []}, "record.json has no decisions"),
        ({"decisions": [1]}, "record.json has no decisions"),
        ([], "record.json is not an object"),
        ({"decisions": [{"$record": "os.system"}]}, "unreadable record"),
    ],
)
def test_a_forged_record_is_refused(built: Path, tmp_path: Path, record: Any, message: str) -> None:
    text = json.dumps(record).encode()
    members = {**_members(built), "record.json": text}
    digest = hashlib.sha256(text).hexdigest()
    members = _edited(members, lambda document: document["hashes"].update({"record.json": digest}))
    engine = tw.load(_zip(tmp_path / "engine.tw", members))
    with pytest.raises(CorruptEngine, match=message):
        _ = engine.decisions


def test_members_must_be_known_and_have_safe_names(built: Path, tmp_path: Path) -> None:
    members = _members(built)
    _refused(_zip(tmp_path / "a.tw", {**members, "more": b""}), "an unknown member more")
    for name in ("../escape", "/absolute", "kernels/../../escape"):
        _refused(_zip(tmp_path / "a.tw", {**members, name: b""}), "a member is named")
    path = _zip(tmp_path / "twice.tw", members)
    with (
        zipfile.ZipFile(path, "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("engine.json", members["engine.json"])
    _refused(path, "a member twice")


def test_a_foreign_method_of_packing_is_refused(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "engine.tw"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in _members(built).items():
            archive.writestr(name, data)
    _refused(path, "packed in a foreign way")


def test_a_foreign_version_is_named(built: Path, tmp_path: Path) -> None:
    members = _edited(_members(built), lambda document: document.update(format=99))
    path = _zip(tmp_path / "engine.tw", members)
    _refused(path, f"format 99, this version reads {engine_file.FORMAT}")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(built: Path, tmp_path: Path) -> None:
    members = {**_members(built), "weights.safetensors": bytes(64 << 20)}
    path = _zip(tmp_path / "engine.tw", members, compress=True)
    assert path.stat().st_size < 1 << 20
    _refused(path, "weights.safetensors expands 200 times")


def test_many_members_that_expand_little_are_a_bomb_too(built: Path, tmp_path: Path) -> None:
    members = {f"kernels/{k}.ll": bytes(150_000) for k in range(100)}
    path = _zip(tmp_path / "engine.tw", _members(built) | members, compress=True)
    _refused(path, "its members expand to 1[0-9]{7} bytes")


def _edits() -> dict[str, tuple[Callable[[dict[str, Any]], None], str]]:
    def step(document: dict[str, Any]) -> Any:
        (found,) = (s for s in document["program"]["steps"] if s["$record"] == "Segment")
        return found

    return {
        "no program": (lambda d: d.update(program=None), "no program"),
        "no hashes": (lambda d: d.pop("hashes"), "not complete"),
        "unknown class": (
            lambda d: d["program"].update({"$record": "os.system"}),
            "unreadable record: .os.system",
        ),
        "kernel that is missing": (
            lambda d: d["exports"].update({"f" * 32: ["stage_0"]}),
            "code of kernel f+ is missing",
        ),
        "constant of another size": (
            lambda d: d["constants"]["w"].__setitem__(1, [4, 3, 3, 4]),
            "constant w has the wrong size",
        ),
        "constant of a negative size": (
            lambda d: d["constants"]["w"].__setitem__(1, [-4, -3, 3, 3]),
            "constant w has the wrong size",
        ),
        "unknown element type": (
            lambda d: d["constants"]["w"].__setitem__(0, "float7"),
            "not complete|float7",
        ),
        "threads that are no number": (
            lambda d: d["info"]["$map"].update(threads="many"),
            "threads is 'many'",
        ),
        "ranges that are none": (
            lambda d: d["info"]["$map"].update(ranges={"$map": {"batch": [1]}}),
            "ranges is",
        ),
        "metadata that are no text": (
            lambda d: d["info"]["$map"].update(metadata={"$map": {"key": 1}}),
            "metadata is",
        ),
        "calls that are no calls": (
            lambda d: step(d).update(calls=[1]),
            r"Segment\.calls is",
        ),
        "call of a kernel that is missing": (
            lambda d: step(d)["calls"][0].update(kernel="0" * 32),
            "kernel 0+",
        ),
        "buffer that is missing": (
            lambda d: step(d)["calls"][0]["buffers"].__setitem__(0, "nowhere"),
            "the buffer 'nowhere', which does not exist",
        ),
        "input that nothing gives": (
            lambda d: step(d)["inputs"][0].update(name="nowhere"),
            "nothing gives the value 'nowhere'",
        ),
        "input of another type": (
            lambda d: step(d)["inputs"][0].update(dtype={"$dtype": "float64"}),
            "is not float64",
        ),
        "size that nothing tells": (
            lambda d: (
                d["sizes"].extend(["elsewhere", [[1, len(d["sizes"])]]]),
                step(d)["calls"][0].update(dims=[{"$dim": len(d["sizes"]) - 1}]),
            ),
            r"unknown sizes \['elsewhere'\]",
        ),
        "size of later ones": (
            lambda d: d["sizes"].insert(0, [[1, 3]]),
            "no size before it is .3",
        ),
        "no sizes": (lambda d: d.update(sizes=None), "sizes are no list"),
        "buffer that stands for itself": (
            lambda d: step(d)["aliases"]["$map"].update({"x": "x"}),
            "stands for itself",
        ),
    }


@pytest.mark.parametrize("name", list(_edits()))
def test_a_forged_program_is_refused(built: Path, tmp_path: Path, name: str) -> None:
    edit, message = _edits()[name]
    _refused(_zip(tmp_path / "engine.tw", _edited(_members(built), edit)), message)


def test_deep_json_is_refused(built: Path, tmp_path: Path) -> None:
    text = b"[" * 200_000
    members = {
        **_members(built),
        "engine.json": text,
        "engine.sha256": hashlib.sha256(text).hexdigest().encode(),
    }
    _refused(_zip(tmp_path / "engine.tw", members), "not JSON")


def test_weights_of_all_types_survive(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    from unit.graph.models import model_of, node, tensor_info

    types = (
        "FLOAT FLOAT16 BFLOAT16 DOUBLE INT8 UINT16 BOOL INT4 FLOAT8E4M3FN FLOAT4E2M1 STRING"
    ).split()
    nodes, outputs = [], []
    for name in types:
        code = getattr(TensorProto, name)
        values: list[Any] = [b"a", b"\xc3\xa9"] if name == "STRING" else [1, 0]
        tensor = helper.make_tensor(f"t{name}", code, (2,), values)
        nodes.append(node("Constant", [], [name], name=f"n{name}", value=tensor))
        outputs.append(tensor_info(name, (2,), code))
    model: onnx.ModelProto = model_of(nodes, inputs=[], outputs=[], opset=23)
    model.graph.output.extend(outputs)
    engine = compiled(model)
    engine.save(tmp_path / "engine.tw")
    loaded = tw.load(tmp_path / "engine.tw")
    for name, value in engine.run({}).items():
        got = loaded.run({})[name]
        assert got.dtype == value.dtype
        assert got.tolist() == value.tolist()
