"""An explanation as one HTML file that opens from disk.

Input -> Output: ``Explanation`` -> a page with its data, style and script inside.
Guarantees: nothing is loaded from anywhere (a content policy forbids it); data cannot end the
script that holds it.
Not here: what the page draws (assets/*.js reads the JSON of docs/explain.md).
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from string import Template

from tilewright.report.explanation import Explanation, explanation_json

_SCRIPTS = ("tools.js", "roofline.js", "tables.js", "sections.js", "main.js")


def page(explanation: Explanation) -> str:
    """The whole page."""
    return Template(_asset("page.html")).substitute(
        title=escape(explanation.title),
        style=_asset("style.css"),
        script="\n".join(_asset(name) for name in _SCRIPTS),
        data=embedded(explanation_json(explanation)),
    )


def embedded(value: object) -> str:
    """JSON that can stand in a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return (files("tilewright.report") / "assets" / name).read_text(encoding="utf-8")
