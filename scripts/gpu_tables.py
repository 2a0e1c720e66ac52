"""Tables of what was measured on a GPU, for the pages.

Input -> Output: what ``bench/cuda_table.py`` and ``bench/cuda_quantized.py`` wrote -> Markdown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
    *("ours, ms", "torch as a graph, ms", "`torch.compile` as a graph, ms", "ratio"),
    *("tuned, ms", "ratio, tuned", "error", "the peer's error"),
)
_NARROW = {"int8": "int8", "float8_e4m3fn": "float8", "float16": "float16"}


def peer_table(found: Mapping[str, Any]) -> str:
    """Returns the times of engines beside torch's."""
    rows = [(f"network, {found['precision']}", *_COLUMNS), ("---",) * (1 + len(_COLUMNS))]
    for one in found["models"]:
        ms, errors = one["ms"], one["errors"]
        error = f"{errors['ours']:.1e}" + ("" if one["is_right"] else " (too large)")
        times = (f"{ms[name]:.3f}" for name in ("ours", "eager", "compile"))
        tuned = ("", "")
        if "tuned_ratio" in one:
            tuned = (f"{ms['tuned']:.3f}", f"{one['tuned_ratio']:.2f}")
        peer = f"{errors[one['best_peer']]:.1e}"
        rows.append((one["name"], *times, f"{one['ratio']:.2f}", *tuned, error, peer))
    means = (found["geometric_mean"], found.get("tuned_geometric_mean"))
    shown = ["" if mean is None else f"{mean:.2f}" for mean in means]
    rows.append(("geometric mean", "", "", "", shown[0], "", shown[1], "", ""))
    return _text(rows, found, f", PyTorch {found['torch']}")


def narrow_table(found: Mapping[str, Any]) -> str:
    """Returns the times of quantised engines beside those of float16, and of products."""
    bits_head = "numbers that differ from the simulator"
    integers, floats = (f"{name}, ms" for name in ("int8", "float8"))
    head = ("network", "float16, ms", integers, "times as fast", bits_head, floats, "times as fast")
    rows = [head, ("---",) * len(head)]
    for one in found["networks"]:
        bits = one.get("simulator")
        differ = "" if bits is None else f"{bits['different']} of {bits['numbers']}"
        forms = [_form(one, name) for name in ("int8", "float8")]
        rows.append((one["name"], f"{one['ms']['fp16']:.3f}", *forms[0], differ, *forms[1]))
    rates = ", ".join(
        f"{one['tera']:.0f} with {_NARROW[one['types']]}"
        for one in found["products"]
        if one["types"] in _NARROW
    )
    text = _text(rows, found, "")
    return f"{text}A product of 8192³, in tera operations a second: {rates}.\n"


def _form(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    if name not in row["ms"]:
        return "", ""
    return f"{row['ms'][name]:.3f}", f"{row['ratio'][name]:.2f}"


def _text(rows: Sequence[Sequence[str]], found: Mapping[str, Any], more: str) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    note = f"On {found['device']}; Tilewright {found['tilewright']} ({found['commit']}){more}."
    return "\n".join([*lines, "", note]) + "\n"
