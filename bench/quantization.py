"""Accuracy of quantised models: PYTHONPATH=src python FILE MODELS DATA [--only NAME] [-o OUT.json].

MODELS: a folder with efficientnet_lite0.onnx, minilm.onnx and, anywhere below it, the GGUF file of
SmolLM2-135M.  DATA: a folder with imagenet_sample_224.zip (calib/, eval/, eval.csv) and
wikitext2_test.txt.
Output: JSON with device, versions and, for each claim, the commit, the minutes that it took and a
row for each setting: what ONNX Runtime and our engine of the same file give. Top-1 on the 500
pictures; the cosine between the mean states of the float and of the quantised model on 200
sentences; the perplexity of a text's first 4 windows of 512 tokens, of our engine, where 16 windows
from the 300,000th letter on are calibrated with. With --only other claims of OUT.json stay.
"raised" is a choice, no score: for each share that second moments are raised by, the squared error
of results of some products, rounded with the calibration windows, on 8 windows from the 900,000th
letter on, which are neither calibrated with nor scored.
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
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
import smollm2

import tilewright as tw
from tilewright.compiler.bench.machine import describe_commit, describe_device
from tilewright.compress.block_rounding import rounded
from tilewright.compress.data import open_data
from tilewright.compress.gptq import squared_errors
from tilewright.compress.layers import find_layers
from tilewright.compress.walks import walks
from tilewright.core.record import DecisionLog
from tilewright.graph.quantizable import Quantizable
from tilewright.lower.families import LOWERINGS

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
WEIGHTS: Mapping[str, dict[str, Any]] = {
    "int8": {"weights": "int8", "data": False},
    "int4": {"weights": "int4", "data": False},
    "int4, calibrated": {"weights": "int4", "data": True},
}
WINDOW, CALIBRATE_FROM, CHOOSE_FROM = 512, 300_000, 900_000
CALIBRATED = 16  # windows
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
BLOCKS = ("blk.4.", "blk.14.", "blk.24.")  # of SmolLM2, whose products are rounded for the choice


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


def perplexities(models: Path, data: Path) -> Iterator[dict[str, Any]]:
    """Of SmolLM2-135M with weights of few bits."""
    model, windows = _language_model(models, data)
    scored, calibration = windows(0, 4), windows(CALIBRATE_FROM, CALIBRATED)
    exact = _perplexity(in_tilewright(model), scored)
    yield {"setting": "float", "perplexity": exact}
    for name, options in WEIGHTS.items():
        given = calibration if options["data"] else None
        how = {name: value for name, value in options.items() if name != "data"}
        found = tw.quantize(model, given, threads=1, **how)
        reached = _perplexity(in_tilewright(found.model), scored)
        yield {
            "setting": name,
            "perplexity": reached,
            "ratio": reached / exact,
            "size_bytes": len(found.model),
        }


def raised(models: Path, data: Path) -> Iterator[dict[str, Any]]:
    """What second moments are best raised by, for text that integers were not fitted to."""
    model, windows = _language_model(models, data)
    loaded = Quantizable.load(model, DecisionLog(), known=lambda *op: op in LOWERINGS)
    layers = [
        layer
        for layer in find_layers(loaded.view(), carriers=False).layers
        if layer.node.startswith(BLOCKS)
    ]
    inputs = loaded.view().inputs
    fitted, other = (
        walks(loaded, layers, open_data(windows(*where), inputs), threads=1)
        for where in ((CALIBRATE_FROM, CALIBRATED), (CHOOSE_FROM, 8))
    )
    lost: dict[float, list[float]] = {share: [] for share in SHARES}
    for known, met in zip(fitted, other, strict=True):
        for layer in known.layers:
            grams = [walk.moments[layer.source].gram(centred=False) for walk in (known, met)]
            power = squared_errors(layer.weights[None], grams[1]).sum()
            for share in SHARES:
                grid, codes = rounded(layer.weights, 32, 4, grams[0], raised=share)
                off = grid.floats(codes) - layer.weights
                lost[share].append(float(squared_errors(off[None], grams[1]).sum() / power))
    for share, errors in lost.items():
        ratios = np.array(errors) / np.array(lost[SHARES[0]])
        mean = float(np.exp(np.log(errors).mean()))
        row = {"setting": f"raised by {share:g}", "products": len(errors), "error": mean}
        yield {**row, "worst against the first": float(ratios.max())}


def _language_model(models: Path, data: Path) -> tuple[Any, Callable[[int, int], list[Any]]]:
    """SmolLM2-135M, and a function that gives windows of the text from a letter on."""
    (path,) = models.rglob("SmolLM2-135M-Instruct.Q4_1.gguf")
    facts, weights = smollm2.read_gguf(path)
    text = (data / "wikitext2_test.txt").read_text(encoding="utf-8")
    encode = smollm2.tokenizer(facts)

    def windows(start: int, count: int) -> list[Any]:
        letters = max(40_000, 3750 * count)  # some more than are needed
        tokens = encode(text[start : start + letters])
        assert len(tokens) >= count * WINDOW
        array = np.array(tokens[: count * WINDOW], np.int64).reshape(count, 1, WINDOW)
        return [{"ids": window} for window in array]

    return smollm2.network(facts, weights, WINDOW), windows


def _perplexity(run: Run, windows: list[dict[str, Any]]) -> float:
    lost: list[Any] = []
    for feeds in windows:
        logits = run(feeds)[0].astype(np.float64)[:-1]
        logits -= logits.max(1, keepdims=True)
        wanted = logits[np.arange(WINDOW - 1), feeds["ids"][0, 1:]]
        lost.append(np.log(np.exp(logits).sum(1)) - wanted)
    return float(np.exp(np.mean(lost)))


CLAIMS = {
    "efficientnet_lite0": pictures,
    "minilm": sentences,
    "raised": raised,
    "smollm2": perplexities,
}


def main() -> int:
    """Measures, and prints or writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=sorted(CLAIMS))
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    if given.only and given.output is not None and given.output.exists():
        results = json.loads(given.output.read_text(encoding="utf-8"))
    results |= {
        "device": describe_device(),
        "onnxruntime": onnxruntime.__version__,
        "tilewright": tw.__version__,
    }
    for name, claim in CLAIMS.items():
        if given.only in (None, name):
            start, rows = perf_counter(), list[Any]()
            results[name] = {"commit": describe_commit(), "minutes": 0.0, "rows": rows}
            for row in claim(given.models, given.data):
                print(name, row, file=sys.stderr, flush=True)
                rows.append(row)
                results[name]["minutes"] = round((perf_counter() - start) / 60, 1)
                if given.output is not None:  # what is done stays, whatever happens to the rest
                    given.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if given.output is None:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
