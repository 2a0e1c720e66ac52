"""Accuracy of quantised models: PYTHONPATH=src python FILE MODELS DATA [--only NAME] [-o OUT.json].

MODELS: a folder with efficientnet_lite0.onnx and minilm.onnx.  DATA: a folder with
imagenet_sample_224.zip (calib/, eval/, eval.csv) and wikitext2_test.txt.
Output: JSON with device, versions, commit and, for each setting, what ONNX Runtime and our engine
of the same file give: top-1 on the 500 pictures; the cosine between the mean states of the float
and of the quantised model on 200 sentences.
Words of sentences are numbered by their rank in the text from 1996 on, where the vocabulary of the
model begins with frequent words: as varied as sentences, without its tokeniser.
"""

import argparse
import csv
import io
import json
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import tilewright as tw
from tilewright.compiler.bench.machine import describe_commit, describe_device

Run = Callable[[Mapping[str, Any]], Any]
PIXELS = tw.Preprocessing(mean=127, std=128)
PICTURES: Mapping[str, dict[str, Any]] = {
    "per channel": {},
    "per tensor": {"per_channel": False},
    "per tensor, no remedies": {"per_channel": False, "remedies": "none"},
    "per channel, no remedies": {"remedies": "none"},
}
SENTENCES: Mapping[str, dict[str, Any]] = {
    "per channel": {},
    "per channel, no remedies": {"remedies": "none"},
    "dynamic": {"activations": "dynamic"},
}


def in_onnx_runtime(model: bytes | str) -> Run:
    """Runs a model in ONNX Runtime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))[0]


def in_tilewright(model: Any) -> Run:
    """Runs a model in an engine of ours."""
    engine = tw.compile(model, threads=1, verify=False)
    name = engine.outputs[0].name
    return lambda feeds: engine.run(feeds)[name]


def pictures(models: Path, data: Path) -> Iterator[dict[str, Any]]:
    """Top-1 of EfficientNet-Lite0, calibrated on 100 pictures, on 500 others."""
    path = models / "efficientnet_lite0.onnx"
    with zipfile.ZipFile(data / "imagenet_sample_224.zip") as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("eval.csv").decode())))
        with tempfile.TemporaryDirectory() as folder:
            archive.extractall(folder)
            labels = np.array([int(row["label"]) for row in rows])
            batches = _batches(Path(folder), [row["file"] for row in rows])

            def top1(run: Run) -> float:
                seen = np.concatenate([run({"x": batch}).argmax(1) for batch in batches])
                return float((seen == labels).mean())

            yield {"setting": "float", "onnxruntime": top1(in_onnx_runtime(str(path)))}
            for name, options in PICTURES.items():
                found = tw.quantize(
                    path, Path(folder, "calib"), preprocessing=PIXELS, threads=1, **options
                )
                yield {
                    "setting": name,
                    "onnxruntime": top1(in_onnx_runtime(found.model)),
                    "tilewright": top1(in_tilewright(found.model)),
                    "size_bytes": len(found.model),
                }


def _batches(folder: Path, files: list[str]) -> list[Any]:
    from PIL import Image

    pixels = []
    for file in files:
        with Image.open(folder / file) as picture:
            pixels.append(np.asarray(picture.convert("RGB"), np.float32))
    stacked = ((np.stack(pixels) - 127) / 128).transpose(0, 3, 1, 2)
    return [np.ascontiguousarray(stacked[k : k + 25]) for k in range(0, len(files), 25)]


def sentences(models: Path, data: Path) -> Iterator[dict[str, Any]]:
    """Cosines of MiniLM, calibrated on 100 sentences, on 200 others."""
    path = models / "minilm.onnx"
    calibration, others = _sentences((data / "wikitext2_test.txt").read_text(encoding="utf-8"))

    def states(run: Run) -> Any:
        found = np.stack([run(feeds)[0].mean(0) for feeds in others])
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    exact = states(in_onnx_runtime(str(path)))
    for name, options in SENTENCES.items():
        given = None if options.get("activations") == "dynamic" else calibration
        found = tw.quantize(path, given, threads=1, **options)
        row: dict[str, Any] = {"setting": name, "size_bytes": len(found.model)}
        for runtime, run in (
            ("onnxruntime", in_onnx_runtime(found.model)),
            ("tilewright", in_tilewright(found.model)),
        ):
            cosines = (states(run) * exact).sum(1)
            row[runtime] = {"mean": float(cosines.mean()), "least": float(cosines.min())}
        yield row


def _sentences(text: str) -> tuple[list[Any], list[Any]]:
    parts = [part.split() for line in text.lower().split("\n") for part in line.split(" . ")]
    kept = [words for words in parts if 8 <= len(words) <= 40 and "=" not in words]
    counts = Counter(word for words in kept for word in words)
    rank = {word: number for number, (word, _) in enumerate(counts.most_common())}
    chosen = np.random.default_rng(0).permutation(len(kept))[:300]

    def feeds(words: list[str]) -> dict[str, Any]:
        ids = np.array([[101, *(min(1996 + rank[word], 30500) for word in words), 102]], np.int64)
        return {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }

    made = [feeds(kept[index]) for index in chosen]
    return made[:100], made[100:]


CLAIMS = {"efficientnet_lite0": pictures, "minilm": sentences}


def main() -> int:
    """Measures, and prints or writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=sorted(CLAIMS))
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {
        "device": describe_device(),
        "commit": describe_commit(),
        "onnxruntime": onnxruntime.__version__,
        "tilewright": tw.__version__,
    }
    for name, claim in CLAIMS.items():
        if given.only in (None, name):
            results[name] = []
            for row in claim(given.models, given.data):
                print(name, row, file=sys.stderr, flush=True)
                results[name].append(row)
                if given.output is not None:  # what is done stays, whatever happens to the rest
                    given.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if given.output is None:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
