"""Draws the picture that the demo reads, with the font that comes with Pillow.

Lines below -> ``text.png`` and ``text.txt`` (the lines in reading order) beside this script.
Sizes, colours and a slope differ from line to line; one line stands upside down.
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
SIZE = (960, 736)
PAPER = (250, 248, 240)
MARGIN = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line: what it says, its size in pixels, its colour, and by how many degrees it turns."""

    text: str
    size: int = 30
    colour: tuple[int, int, int] = (30, 30, 36)
    degrees: float = 0


LINES = (
    Line(text="Tilewright lays tiles up to the roofline", size=42, colour=(150, 40, 20)),
    Line(text="A network is a graph; a kernel is a loop."),
    Line(text="Measured beats believed: 3 of 4 guesses fail."),
    Line(text="Upside down: page 17", size=32, degrees=180),
    Line(text="Invoice 2024-0817, total 1,284.50 EUR", size=34, colour=(20, 60, 120)),
    Line(text="Tile sizes = [64, 32, 8], threads: 2", size=28),
    Line(text="E-mail hello@example.com or call 555-0142", size=28),
    Line(text="It slopes a little, like a real photo.", size=30, degrees=2),
    Line(text="Quick zephyrs blow, vexing daft Jim!", size=36, colour=(20, 90, 50)),
    Line(text="0.1 + 0.2 != 0.3 (but 50% of 80 is 40)", size=26, colour=(90, 90, 100)),
)


def draw_line(line: Line) -> Image.Image:
    """Returns the line alone, turned, on a transparent ground."""
    font = ImageFont.load_default(line.size)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(line.text))
    picture = Image.new("RGBA", (right - left + 8, bottom - top + 8), (*line.colour, 0))
    ImageDraw.Draw(picture).text((4 - left, 4 - top), line.text, fill=line.colour, font=font)
    return picture.rotate(line.degrees, Image.Resampling.BICUBIC, expand=True)


def main() -> None:
    """Writes the picture and the text."""
    page = Image.new("RGB", SIZE, PAPER)
    step = (SIZE[1] - MARGIN) // len(LINES)
    for row, line in enumerate(LINES):
        drawn = draw_line(line)
        page.paste(drawn, (MARGIN, MARGIN // 2 + row * step + (step - drawn.height) // 2), drawn)
    page.save(HERE / "text.png", optimize=True)
    text = "".join(f"{line.text}\n" for line in LINES)
    (HERE / "text.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
