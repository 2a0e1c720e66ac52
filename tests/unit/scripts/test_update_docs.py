"""README.md says what was measured."""

from pathlib import Path
from typing import Any

import pytest
import update_docs
from gpu_tables import narrow_table, peer_table


def _comparison(model: str, threads: int) -> dict[str, Any]:
    def timing(contender: str, version: str, median_us: float) -> dict[str, object]:
        return {"contender": contender, "version": version, "median_us": median_us}

    return {
        "model": model,
        "threads": threads,
        "device": "A CPU, 2 processors",
        "timings": [
            timing("onnxruntime", "1.32.0", 3000.0),
            timing("tilewright", "0.1.0", 2000.0),
        ],
        "ratio_median": {"onnxruntime": 1.5},
        "ratio_min": {"onnxruntime": 1.25},
    }


def test_rows_are_sorted_and_name_the_machine() -> None:
    text = update_docs.table([_comparison("b.onnx", 1), _comparison("a.onnx", 2)])
    rows = text.splitlines()
    assert rows[:5] == [
        "| model | threads | Tilewright, ms | onnxruntime 1.32.0 | best of them |",
        "| --- | --- | --- | --- | --- |",
        "| a | 2 | 2.000 | 1.50 (1.25) | 1.50 (1.25) |",
        "| b | 1 | 2.000 | 1.50 (1.25) | 1.50 (1.25) |",
        "| **geometric mean** |  |  | 1.50 (1.25) | 1.50 (1.25) |",
    ]
    assert text.endswith("On A CPU, 2 processors; Tilewright 0.1.0.\n")


def test_a_peer_that_could_not_run_a_model_has_no_ratio_there() -> None:
    both = _comparison("a.onnx", 1)
    both["timings"].append({"contender": "openvino", "version": "9", "median_us": 1.0})
    both["ratio_median"]["openvino"], both["ratio_min"]["openvino"] = 6.0, 1.0
    rows = update_docs.table([both, _comparison("b.onnx", 1)]).splitlines()
    assert rows[0].endswith("| onnxruntime 1.32.0 | openvino 9 | best of them |")
    assert rows[2].endswith("| 1.50 (1.25) | 6.00 (1.00) | 1.50 (1.00) |")
    assert rows[3].endswith("| 1.50 (1.25) | – | 1.50 (1.25) |")


def test_errors_and_precisions_are_told_where_they_differ() -> None:
    found = _comparison("a.onnx", 1)
    for timing, precision in zip(found["timings"], ("fp32", "bf16"), strict=True):
        timing.update(precision=precision, error=1e-3)
    rows = update_docs.table([found], errors=True).splitlines()
    assert rows[0].startswith("| model | threads | Tilewright, ms | onnxruntime 1.32.0 (fp32) |")
    assert rows[2].endswith("| 1.0e-03 | – |")
    assert {row.count("|") for row in rows[:4]} == {8}


def test_quantised_models_share_columns_with_what_others_call_float() -> None:
    found = [_comparison("a.onnx", 1), _comparison("b.onnx", 1)]
    for timing in found[0]["timings"]:
        timing.update(precision="int8")
    rows = update_docs.table(found).splitlines()
    assert rows[0] == "| model | threads | Tilewright, ms | onnxruntime 1.32.0 | best of them |"


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert update_docs.load_results(tmp_path) == []
    assert update_docs.table([]) == "No measured results yet.\n"


def test_only_what_is_between_the_markers_changes() -> None:
    page = f"before\n{update_docs.BEGIN}old\n{update_docs.END}\nafter\n"
    wanted = f"before\n{update_docs.BEGIN}new\n{update_docs.END}\nafter\n"
    assert update_docs.filled(page, "new\n") == wanted
    with pytest.raises(ValueError, match="substring not found"):
        update_docs.filled("no markers", "new\n")


def test_check_refuses_a_page_that_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "conformance.json").write_text('{"node": {"cases": 3, "passed": 2}}')
    markers = f"{update_docs.CASES_BEGIN}{update_docs.CASES_END}\n"
    for name in ("README.md", "docs/lowering.md"):
        (tmp_path / name).write_text(f"{update_docs.BEGIN}made up\n{update_docs.END}\n{markers}")
    kinds = [update_docs.markers(precision) for precision in ("bf16", "int8")]
    empty = "".join(f"{begin}made up\n{end}\n" for begin, end in kinds)
    (tmp_path / "docs" / "precision.md").write_text(empty)
    peaks = f"{update_docs.PEAK_BEGIN}made up\n{update_docs.PEAK_END}\n"
    (tmp_path / "docs" / "benchmarks.md").write_text(peaks)
    (tmp_path / "bench" / "results").mkdir(parents=True)
    measured = tmp_path / "bench" / "results" / "cpu_peak_haswell.json"
    measured.write_text('{"device": "A CPU", "peak_gflops": 1.0, "models": []}')
    sizes = f"{update_docs.SIZES_BEGIN}made up\n{update_docs.SIZES_END}\n"
    (tmp_path / "docs" / "runtime.md").write_text(sizes)
    gpu = "<!-- cuda-quantized:begin -->\nmade up\n<!-- cuda-quantized:end -->\n"
    (tmp_path / "docs" / "cuda.md").write_text(gpu)
    facts = '"device": "A GPU", "tilewright": "1", "commit": "abc", "networks": [], "products": []'
    (measured.parent / "cuda_quantized_h200.json").write_text(f"{{{facts}}}")
    page = tmp_path / "README.md"
    monkeypatch.setattr(update_docs, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["update_docs.py", "--check"])
    assert update_docs.main() == 1
    assert "made up" in page.read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["update_docs.py"])
    assert update_docs.main() == 0
    assert "| node | 3 | 2 | 0 |" in page.read_text(encoding="utf-8")
    assert "On A GPU" in (tmp_path / "docs" / "cuda.md").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["update_docs.py", "--check"])
    assert update_docs.main() == 0


def test_peaks_are_shown_by_time_and_not_for_what_takes_none() -> None:
    product = {"us": 900.0, "fma_percent": 91.4, "percent": 92.6, "near": 0.51}
    depthwise = {"us": 9.0, "fma_percent": 20.0, "percent": 40.0, "near": 0.0}
    model = {"model": "m", "stages_us": 1000.0, "product": product, "depthwise": depthwise}
    document = {"device": "A CPU", "peak_gflops": 116.8, "models": [model]}
    rows = update_docs.peak_table(document).splitlines()
    assert rows[2] == "| m | 91 | 93 | 51 |  |  |  |"
    assert rows[-1] == "On A CPU, of 116.8 GFLOP/s."


def test_first_runs_at_new_sizes_stand_beside_the_steady_time() -> None:
    size = {"first_wall_ms": 1.24, "first_cpu_ms": 0.96, "steady_ms": 87.6}
    row = {"threads": 1, "other": "small", "sizes": {"640x640": size}}
    found = {
        "model": "m",
        "device": "A CPU",
        "tilewright": "0.1.0",
        "processes": 7,
        "dims": {},
        "rows": [{**row, "ratio_min": 1.031, "ratio_median": 1.04}],
    }
    lines = update_docs.size_table(found).splitlines()
    assert lines[2] == "| 1 | small | 1.2 / 1.0 (88) | 1.040 (1.031) |"
    assert "ranges not declared" in lines[-1]
    assert "No measured" in update_docs.size_table(None)


def test_a_gpu_beside_torch() -> None:
    row = {
        "name": "net b1",
        "ms": {"ours": 1.0, "eager": 3.0, "compile": 2.0, "tuned": 0.8},
        "errors": {"ours": 1e-3, "eager": 2e-3, "compile": 3e-3},
        "is_right": True,
        "best_peer": "compile",
        "ratio": 2.0,
        "tuned_ratio": 2.5,
    }
    wrong = {**row, "name": "untuned", "is_right": False, "ms": {**row["ms"]}}  # type: ignore[dict-item]
    del wrong["tuned_ratio"]
    found = {
        "precision": "fp16",
        "device": "A GPU",
        "tilewright": "0.1.0",
        "commit": "abc",
        "torch": "2.11",
        "geometric_mean": 2.0,
        "models": [row, wrong],
    }
    lines = peer_table(found).splitlines()
    assert lines[0].startswith("| network, fp16 | ours, ms |")
    assert lines[2:] == [
        "| net b1 | 1.000 | 3.000 | 2.000 | 2.00 | 0.800 | 2.50 | 1.0e-03 | 3.0e-03 |",
        "| untuned | 1.000 | 3.000 | 2.000 | 2.00 |  |  | 1.0e-03 (too large) | 3.0e-03 |",
        "| geometric mean |  |  |  | 2.00 |  |  |  |  |",
        "",
        "On A GPU; Tilewright 0.1.0 (abc), PyTorch 2.11.",
    ]


def test_narrow_types_on_a_gpu() -> None:
    found = {
        "device": "A GPU",
        "tilewright": "0.1.0",
        "commit": "abc",
        "networks": [
            {
                "name": "net b1",
                "ms": {"fp16": 1.0, "int8": 0.5},
                "ratio": {"int8": 2.0},
                "simulator": {"numbers": 10, "different": 0},
            },
            {"name": "other", "ms": {"fp16": 1.0, "float8": 0.8}, "ratio": {"float8": 1.25}},
        ],
        "products": [{"types": "int8", "tera": 1349.4}, {"types": "uint8 by int8", "tera": 1.0}],
    }
    assert narrow_table(found).splitlines()[2:] == [
        "| net b1 | 1.000 | 0.500 | 2.00 | 0 of 10 |  |  |",
        "| other | 1.000 |  |  |  | 0.800 | 1.25 |",
        "",
        "On A GPU; Tilewright 0.1.0 (abc).",
        "A product of 8192³, in tera operations a second: 1349 with int8.",
    ]
