"""What quantisation did, as one HTML file that opens from disk.

Input -> Output: counts, decisions, effects of nodes, a front -> a page without scripts; the front
is drawn as SVG: latency to the right, accuracy upwards, area of a circle for bytes of weights.
Guarantees: nothing is loaded from anywhere.
Not here: measuring (compress).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tilewright.core.record import Decision
from tilewright.report.quantization import Front, FrontPoint, Sensitivity, quantization_lines
from tilewright.report.units import us_text

_WIDTH, _HEIGHT, _MARGIN = 720, 360, 60
_STYLE = """
svg { max-width: 100%; background: #fff; border: 1px solid #ccc; font: 12px sans-serif; }
.point { fill: #8aa; fill-opacity: 0.5; stroke: #355; } .front { stroke-width: 2.5; }
.chosen { fill: #d62; } .out { stroke-dasharray: 3 2; }
"""


def quantization_page(
    model: str,
    summary: Mapping[str, Any],
    decisions: Sequence[Decision],
    found: Sensitivity | None,
    front: Front | None,
) -> str:
    """The whole page."""
    style = (files("tilewright.report") / "assets" / "style.css").read_text(encoding="utf-8")
    lines = "\n".join(quantization_lines(model, summary, decisions, None, front))
    parts = [f"<h1>Quantisation of {escape(model)}</h1>", f"<pre>{escape(lines)}</pre>"]
    if front is not None:
        parts += ["<h2>Accuracy, latency and size</h2>", _drawn(front), _points(front)]
        if front.verdict is not None:
            parts += ["<h2>Next to the chosen one</h2>", f"<p>{escape(front.verdict)}.</p>"]
            parts.append(_moves(front))
    if found is not None:
        parts += ["<h2>Which node hurts</h2>", _effects(found)]
    rows = [(one.stage, one.subject, one.chosen, _rejected(one)) for one in decisions]
    parts += ["<h2>Decisions</h2>", _table(("stage", "subject", "chosen", "rejected"), rows)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(model)}</title><style>{style}{_STYLE}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def _rejected(one: Decision) -> str:
    return "; ".join(f"{option}: {reason}" for option, reason in one.rejected)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(str(part))}</td>" for part in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _effects(found: Sensitivity) -> str:
    head = (
        "node",
        "operator",
        "alone, dB",
        "beyond bits, dB",
        "drop",
        "gain if float",
        "main cause",
        "noise by cause",
    )
    rows = [
        (
            one.node,
            one.op_type,
            f"{one.sqnr_db:.1f}",
            f"{one.excess_db:+.1f}" + " (broken?)" * one.broken,
            "" if one.drop is None else f"{one.drop:+.4f}",
            f"{one.gain:+.4f}",
            one.main_cause or "",
            ", ".join(f"{name} {noise:.1e}" for name, noise in one.causes.items()),
        )
        for one in found.nodes
    ]
    return _table(head, rows)


def _accuracy(point: FrontPoint) -> float:
    value = point.sqnr_db if point.metric is None else point.metric
    return value if math.isfinite(value) else 150.0  # of the float model, whose noise is rounding


def _drawn(front: Front) -> str:
    """The points, in a frame with their ranges."""
    times = [point.predicted_us for point in front.points]
    scores = [_accuracy(point) for point in front.points]
    most_bytes = max(point.size_bytes for point in front.points) or 1

    def place(value: float, values: Sequence[float], start: float, end: float) -> float:
        low, high = min(values), max(values)
        return (
            (start + end) / 2
            if high == low
            else start + (end - start) * (value - low) / (high - low)
        )

    marks = []
    for index, point in enumerate(front.points):
        x = place(point.predicted_us, times, _MARGIN, _WIDTH - _MARGIN)
        y = place(_accuracy(point), scores, _HEIGHT - _MARGIN, _MARGIN)
        kind = "point" + " front" * (index in front.optimal) + " out" * (not point.within)
        kind += " chosen" * (index == front.chosen)
        radius = 4 + 10 * math.sqrt(point.size_bytes / most_bytes)
        text = f"{point.num_int8} on integers, {us_text(point.predicted_us)}, {_accuracy(point):g}"
        marks.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
            f"<title>{escape(text)}</title></circle>"
        )
    name = "metric" if front.points[0].metric is not None else "signal to noise, dB"
    labels = [
        (_MARGIN, _HEIGHT - 15, f"{us_text(min(times))}", "start"),
        (_WIDTH - _MARGIN, _HEIGHT - 15, f"{us_text(max(times))}", "end"),
        (_WIDTH / 2, _HEIGHT - 15, "latency", "middle"),
        (10, _HEIGHT - _MARGIN, f"{min(scores):g}", "start"),
        (10, _MARGIN, f"{max(scores):g}", "start"),
        (10, 20, name, "start"),
    ]
    texts = [
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, text, anchor in labels
    ]
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    return f"<svg {box}>{''.join([*marks, *texts])}</svg>"


def _points(front: Front) -> str:
    head = ("", "on integers", "metric", "dB", "predicted", "weights, MB", "in budget", "in float")
    rows = [
        (
            "chosen" if index == front.chosen else "front" if index in front.optimal else "",
            point.num_int8,
            "" if point.metric is None else f"{point.metric:.4f}",
            f"{point.sqnr_db:.1f}",
            us_text(point.predicted_us),
            f"{point.size_bytes / 1e6:.2f}",
            "yes" if point.within else "no",
            ", ".join(point.float_nodes),
        )
        for index, point in enumerate(front.points)
    ]
    return _table(head, rows)


def _moves(front: Front) -> str:
    head = ("time, of the chosen one", "to", "in budget", "nodes")
    kept = {None: "", True: "yes", False: "no"}
    rows = [
        (f"{one.ratio:.3f}", one.to, kept[one.within], ", ".join(one.nodes)) for one in front.moves
    ]
    return _table(head, rows)
