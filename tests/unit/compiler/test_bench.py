"""The comparison of outputs can refuse, and contenders answer from processes of their own."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tilewright.compiler.bench import BenchOptions, BenchReport, Comparison, bench, compare
from tilewright.compiler.bench.contender import Canary, CannotRun, Contender
from tilewright.compiler.bench.model_precision import model_precision
from tilewright.compiler.bench.outputs import errors_of, relative_error
from tilewright.compiler.bench.peers import OPENERS, openvino
from tilewright.compiler.bench.peers import torch as torch_peer
from tilewright.compiler.bench.peers.opened import EXACT
from tilewright.compiler.bench.results import BEST, Round, canaries_of, kept_samples_us
from tilewright.compiler.feeds import Arrays, InputSpec
from tilewright.core.errors import BadOption, UserError, VerificationFailed

INF, NAN = float("inf"), float("nan")
X = np.array([1.0, -4.0, 2.0], np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that adds its input [n, 3] to itself."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    opsets = [helper.make_opsetid("", 21)]
    path = tmp_path_factory.mktemp("model") / "double.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("actual", "wanted", "error"),
    [
        ({"y": X}, {"y": X}, 0.0),
        ({"y": X + np.float32(0.4)}, {"y": X}, pytest.approx(0.1)),
        ({"y": X}, {"z": X}, np.inf),
        ({"y": X[:2]}, {"y": X}, np.inf),
        ({"y": X * np.float32("nan")}, {"y": X}, np.inf),
        ({"y": X}, {"y": X * np.float32("inf")}, np.inf),
        ({"y": X}, {"y": 0 * X}, np.inf),
        ({"y": 0 * X}, {"y": 0 * X}, 0.0),
        ({"y": X * np.float32("nan")}, {"y": X * np.float32("nan")}, 0.0),
        ({"y": np.array([True])}, {"y": np.array([False])}, np.inf),
        ({"y": np.zeros(0)}, {"y": np.zeros(0)}, 0.0),
    ],
)
def test_relative_error(actual: Arrays, wanted: Arrays, error: float) -> None:
    assert relative_error(actual, wanted) == error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": ("tensorflow",)}, "unknown peers"),
        ({"peers": ()}, "nothing to compare"),
        ({"peers": ("torch", "torch")}, "named twice"),
        ({"peers": ("tilewright",)}, "takes part anyway"),
        *[({"batch_ms": value}, "batch_ms is ") for value in (INF, NAN, -1.0, 0.0, 1e9)],
        *[({"rounds": value}, "rounds is ") for value in (-1, 0, 10**6, 10**30)],
        *[({"tolerance": value}, "tolerance is ") for value in (INF, NAN, -1.0)],
        *[({"threads": value}, "threads is ") for value in (-1, 0, 10**5, 10**30)],
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: dict[str, Any], message: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "Contender", None)  # nothing is started
    with pytest.raises(BadOption, match=message):
        bench(model, BenchOptions(**options))


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        bench(tmp_path / "none.onnx", BenchOptions())


def test_a_contender_tells_its_inputs_runs_and_is_timed(model: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "feeds.npz", x=x)
    with Contender("tilewright", model, threads=1) as contender:
        (spec,) = contender.specs
        assert (spec.name, spec.dtype, spec.shape) == ("x", "float32", ("n", 3))
        assert contender.precision == EXACT
        contender.check(tmp_path / "feeds.npz", tmp_path / "outputs.npz")
        samples_us = contender.time_us(2.0)
    with np.load(tmp_path / "outputs.npz") as arrays:
        assert np.array_equal(arrays["y"], 2 * x)
    assert samples_us
    assert min(samples_us) > 0


def test_a_contender_that_has_died_is_explained(model: Path) -> None:
    with Contender("tilewright", model, threads=1) as contender:
        contender._process.kill()
        contender._process.wait()
        with pytest.raises(UserError, match="tilewright died with exit code -9"):
            contender.time_us(1.0)


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino", "torch"])
def test_a_missing_peer_is_explained(
    monkeypatch: pytest.MonkeyPatch, model: Path, peer: str
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(BadOption, match=f"{peer} is not installed") as caught:
        OPENERS[peer](model, 1, EXACT)
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(f"pip install {peer}")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("x", name="torchvision.ops"), "needs torchvision, which is not inst"),
        (OSError("libgomp.so: cannot open"), "cannot be loaded: libgomp.so"),
    ],
)
def test_a_peer_that_cannot_be_loaded_is_explained(
    monkeypatch: pytest.MonkeyPatch, model: Path, error: Exception, message: str
) -> None:
    def broken(_name: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(BadOption, match=message):
        OPENERS["onnxruntime"](model, 1, EXACT)


class Anything:
    """A module whose every attribute and call gives itself; it remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any) -> Any:
        self.told.append(arguments)
        return self

    def to_string(self) -> str:
        """The precision of a runtime that does as it likes."""
        return "bf16"


def test_openvino_is_held_to_the_precision(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    runtime = Anything()
    monkeypatch.setattr(openvino, "import_peer", lambda _name: runtime)
    with pytest.raises(BadOption, match="openvino computes with bf16 where f32 was asked for"):
        openvino.open_openvino(model, 2)
    config = runtime.told[0][2]
    assert config["INFERENCE_PRECISION_HINT"] == "f32"
    assert config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"
    assert config["INFERENCE_NUM_THREADS"] == 2


def test_torch_runs_what_the_converter_makes(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    torch = pytest.importorskip("torch")

    class Double:
        def eval(self) -> Any:
            return self

        def __call__(self, x: Any) -> Any:
            return x + x

    converter = Anything()
    monkeypatch.setattr(converter, "convert", lambda _path: Double(), raising=False)
    modules = {"torch": torch, "onnx2torch": converter}
    monkeypatch.setattr(torch_peer, "import_peer", modules.__getitem__)
    monkeypatch.setattr(torch_peer, "version", lambda name: f"1 of {name}")
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "compile", lambda module: module)
    try:
        for open_model in (torch_peer.open_torch, torch_peer.open_torch_compile):
            opened = open_model(model, 1)
            assert [spec.shape for spec in opened.inputs] == [("n", 3)]
            outputs = opened.bind({"x": X[None]}).outputs()
            np.testing.assert_array_equal(outputs["y"], 2 * X[None])
    finally:
        torch.set_num_threads(before)
    assert opened.settings.startswith("torch.compile")


def refusing(who: set[str]) -> type[Contender]:
    """Contenders that take 10 us, of which some cannot run the model."""

    class Refusing(FakeContender):
        version = settings = ""
        precision, setup_s = EXACT, 0.0

        def __init__(self, name: str, _model: Path, _threads: int, _precision: str) -> None:
            if name in who:
                raise CannotRun(f"{name}: no such operator")
            self.name = name
            self.specs = [InputSpec.of("x", "float32", ("n", 3))]

        def check(self, feeds: Path, outputs: Path) -> None:
            del feeds
            if f"{self.name} later" in who:
                raise CannotRun(f"{self.name}: a wrong shape")
            np.savez(outputs, allow_pickle=False, y=X)

        def close(self) -> None:
            pass

    return Refusing


@pytest.mark.parametrize(
    ("who", "left_out"),
    [
        ({"openvino"}, {"openvino": "openvino: no such operator"}),
        ({"openvino later"}, {"openvino": "openvino: a wrong shape"}),
        (set(), {}),
    ],
)
def test_a_peer_that_cannot_run_a_model_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, model: Path, who: set[str], left_out: dict[str, str]
) -> None:
    monkeypatch.setattr(compare, "Contender", refusing(who))
    options = BenchOptions(peers=("openvino", "onnxruntime"), rounds=1)
    found = bench(model, options, feeds={"x": X[None]})
    assert found.left_out == left_out
    assert list(found.ratio_min) == [name for name in options.peers if name not in left_out]


def test_in_bfloat16_whoever_has_none_may_compute_in_float32(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    asked: list[str] = []

    class Told(refusing(set())):  # type: ignore[misc]
        def __init__(self, name: str, path: Path, threads: int, precision: str) -> None:
            super().__init__(name, path, threads, precision)
            asked.append(precision)
            self.precision = EXACT if name == "onnxruntime" else precision

    monkeypatch.setattr(compare, "Contender", Told)
    options = BenchOptions(peers=("onnxruntime", "openvino"), rounds=1, precision="bf16")
    found = bench(model, options, feeds={"x": X[None]})
    assert asked == ["bf16"] * 3
    assert [one.precision for one in found.timings] == [EXACT, "bf16", "bf16"]
    assert options.allowed == 6e-2
    with pytest.raises(BadOption, match="unknown precision 'fp8'"):
        bench(model, BenchOptions(precision="fp8"))


def test_openvino_takes_the_precision_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    runtime = Anything()
    monkeypatch.setattr(openvino, "import_peer", lambda _name: runtime)
    with pytest.raises(BadOption, match="DYNAMIC|where 0 was asked for"):
        openvino.open_openvino(model, 2, "bf16")
    assert runtime.told[0][2]["INFERENCE_PRECISION_HINT"] == "bf16"


@pytest.mark.parametrize("who", [{"openvino", "onnxruntime"}, {"tilewright"}])
def test_a_comparison_with_nobody_is_an_error(
    monkeypatch: pytest.MonkeyPatch, model: Path, who: set[str]
) -> None:
    monkeypatch.setattr(compare, "Contender", refusing(who))
    with pytest.raises(UserError, match="no such operator"):
        bench(model, BenchOptions(peers=("openvino", "onnxruntime")), feeds={"x": X[None]})


def test_whatever_a_runtime_raises_says_that_it_cannot_run_the_model(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(CannotRun, match="onnxruntime: "):
        Contender("onnxruntime", tmp_path / "no.onnx", 1)


def test_outputs_that_differ_stop_the_comparison() -> None:
    outputs = {"a": {"y": np.array([1.0])}, "b": {"y": np.array([1.001])}}
    errors, wrong = errors_of(outputs, tolerance=1e-2, must="b")
    assert (errors, wrong) == ({"a": 0.0, "b": pytest.approx(1e-3)}, {})
    with pytest.raises(VerificationFailed, match="from a's: b by 1.0e-03") as caught:
        errors_of(outputs, tolerance=1e-4, must="b")
    assert "nothing was timed" in str(caught.value)


def test_outputs_of_random_inputs_that_differ_point_to_real_ones() -> None:
    outputs = {"a": {"y": np.array([1.0])}, "b": {"y": np.array([2.0])}}
    with pytest.raises(VerificationFailed, match="--npz"):
        errors_of(outputs, tolerance=1e-4, must="b", hint=compare.RANDOM)
    _, wrong = errors_of({**outputs, "c": outputs["a"]}, 1e-4, must="c", hint=compare.RANDOM)
    assert "--npz" in wrong["b"]


def test_inputs_of_another_model_are_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(compare, "Contender", refusing(set()))
    options = BenchOptions(peers=("openvino",), rounds=1)
    with pytest.raises(BadOption, match="x missing; z of no input") as caught:
        bench(model, options, feeds={"z": X})
    assert "an .npz with x" in str(caught.value)


def test_a_quantised_model_is_called_so(model: Path, tmp_path: Path) -> None:
    assert model_precision(model) == EXACT
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        agraph (float[n] x) => (float[n] y) <float s = {0.5}> {
          q = QuantizeLinear(x, s)
          y = DequantizeLinear(q, s)
        }
    """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "q.onnx")
    assert model_precision(tmp_path / "q.onnx") == "int8"


def test_a_peer_whose_outputs_differ_is_left_out_and_named() -> None:
    outputs = {"a": {"y": np.array([1.0])}, "b": {"y": np.array([3.0])}}
    _, wrong = errors_of({**outputs, "ours": outputs["a"]}, tolerance=1e-4, must="ours")
    assert list(wrong) == ["b"]
    assert "b: its outputs differ from a's by 2.0e+00; 1.0e-04 is allowed" in wrong["b"]


def test_contenders_of_two_precisions_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    class Fake(Contender):
        def __init__(self, name: str, _model: Path, _threads: int, _precision: str) -> None:
            self.name, self.precision = name, "bf16" if name == "openvino" else EXACT

        def close(self) -> None:
            pass

    monkeypatch.setattr(compare, "Contender", Fake)
    with pytest.raises(BadOption, match="differ in precision"):
        bench(model, BenchOptions(peers=("openvino",)))


# --- rounds ---------------------------------------------------------------------------------------


def _round(flops: float, us: float) -> Round:
    return Round(canary_flops=flops, samples_us={"p": [us], "tilewright": [us / 2]})


def test_rounds_of_a_slow_machine_do_not_count() -> None:
    rounds = [_round(100.0, 1.0), _round(89.0, 9.0), _round(92.0, 2.0), _round(50.0, 8.0)]
    assert kept_samples_us(rounds, "p") == [1.0, 2.0]
    found = canaries_of(rounds, 2)
    assert (found.num_kept, found.num_discarded, found.best_flops) == (2, 2, 100.0)
    assert found.share == [1.0, 0.89, 0.92, 0.5]


def test_a_machine_that_is_slow_all_the_time_is_noticed() -> None:
    rounds = [_round(80.0, 1.0), _round(79.0, 1.0)]
    assert canaries_of(rounds, 2, 100.0).is_slow
    assert not canaries_of(rounds, 2, 85.0).is_slow
    assert not canaries_of(rounds, 2).is_slow  # nobody knows


class FakeContender(Contender):
    """Takes a microsecond, always."""

    def __init__(self, name: str) -> None:
        self.name = name

    def time_us(self, batch_ms: float) -> list[float]:
        return [batch_ms]


class FakeCanary(Canary):
    """Sings what it was given, the last note for ever."""

    def __init__(self, *flops: float) -> None:
        self.notes = list(flops)

    def sing(self) -> tuple[float, float | None]:
        return self.notes.pop(0) if len(self.notes) > 1 else self.notes[0], None


@pytest.mark.parametrize(
    ("flops", "num_rounds", "num_kept"),
    [
        ([100.0], 3, 3),
        ([100.0, 100.0, 100.0, 50.0, 100.0], 4, 3),  # the second round is made up for
        ([50.0, 50.0, 50.0, 50.0, 100.0], 5, 3),  # a better machine makes the first ones slow
        ([100.0, 100.0, 50.0], 6, 1),  # a busy machine ends it all the same
    ],
)
def test_rounds_that_do_not_count_are_made_up_for(
    monkeypatch: pytest.MonkeyPatch, flops: list[float], num_rounds: int, num_kept: int
) -> None:
    monkeypatch.setattr(compare, "SETTLE_S", 0.0)
    contenders = [FakeContender("p"), FakeContender("tilewright")]
    options = BenchOptions(rounds=3)
    said: list[str] = []
    rounds = compare.take_turns(contenders, FakeCanary(*flops), options, said.append)
    assert len(rounds) == num_rounds
    found = canaries_of(rounds, options.rounds)
    assert (found.num_kept, found.are_few) == (num_kept, num_kept == 1)
    assert len(set(said)) == num_rounds  # no line twice
    assert any("discarded" in line for line in said) is (num_rounds > 3)
    assert [next(iter(one.samples_us)) for one in rounds[:2]] == ["p", "tilewright"]


def test_a_machine_whose_processors_are_near_and_far_is_noticed() -> None:
    trips = [80.0, 90.0, 300.0]
    rounds = [replace(_round(100.0, 1.0), round_trip_ns=trip) for trip in trips]
    found = canaries_of(rounds, 3)
    assert (found.round_trip_ns, found.is_torn, found.num_kept) == (trips, True, 3)
    assert not canaries_of(rounds[:2], 2).is_torn
    assert not canaries_of([_round(100.0, 1.0)], 1).is_torn


@pytest.mark.parametrize("threads", [1, 2])
def test_the_canary_measures_the_processors(threads: int) -> None:
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("needs two processors")
    with Canary(threads) as canary:
        flops, trip_ns = canary.sing()
    assert 1e8 < flops < 1e13
    assert (trip_ns is None) == (threads == 1)
    assert trip_ns is None or 1 < trip_ns < 1e8


def _comparison(ratio: float) -> Comparison:
    return Comparison(
        model="m",
        threads=1,
        device="d",
        commit=None,
        inputs={},
        timings=[],
        ratio_min={"p": ratio},
        ratio_median={"p": 2 * ratio},
        canaries=canaries_of([_round(1.0, 1.0)], 1),
    )


def test_the_report_has_the_geometric_means() -> None:
    report = BenchReport.of([_comparison(1.0), _comparison(4.0)])
    assert report.geomean_min == {"p": pytest.approx(2.0), BEST: pytest.approx(2.0)}
    assert report.geomean_median == {"p": pytest.approx(4.0), BEST: pytest.approx(4.0)}


def test_the_best_peer_is_another_one_on_each_model() -> None:
    rows = [_comparison(1.0), _comparison(4.0)]
    rows[1] = replace(rows[1], ratio_min={"p": 8.0, "q": 2.0})
    assert BenchReport.of(rows).geomean_min[BEST] == pytest.approx(2.0**0.5)
