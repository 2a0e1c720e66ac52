"""Decoding, scaling and turning, without networks."""

import numpy as np
import pytest
from PIL import Image

from tilewright.demo import reader
from tilewright.demo.boxes import Box, Floats


def _scores(*indices: int, num_characters: int = 4) -> Floats:
    scores = np.full((len(indices), num_characters), 0.1, np.float32)
    scores[np.arange(len(indices)), indices] = 0.7
    return scores


def test_repeats_merge_unless_a_blank_is_between_them() -> None:
    text, score = reader.decode(_scores(0, 1, 1, 0, 1, 2, 2, 3), ["", "a", "b", " "])
    assert text == "aab "
    assert score == pytest.approx(0.7)


def test_blanks_alone_are_no_text() -> None:
    assert reader.decode(_scores(0, 0), ["", "a", "b", " "]) == ("", 0.0)


def test_the_alphabet_starts_with_a_blank_and_ends_with_a_space() -> None:
    assert reader.alphabet_of({"character": "x\ny"}) == ["", "x", "y", " "]
    with pytest.raises(KeyError, match="character"):
        reader.alphabet_of({})


@pytest.mark.parametrize("size", [(960, 736), (100, 50), (31, 900)])
def test_the_detector_sees_sides_that_are_multiples_of_32(size: tuple[int, int]) -> None:
    pixels = reader.detector_input(Image.new("RGB", size, (255, 0, 0)))
    assert pixels.shape[2] % 32 == 0
    assert pixels.shape[3] % 32 == 0
    assert min(pixels.shape[2:]) >= reader.DETECTOR_MIN_SIDE
    assert pixels[0, :, 0, 0].tolist() == [-1, -1, 1]  # blue, green, red


def test_lines_are_48_high_and_padded_with_zeros() -> None:
    pixels = reader.line_input(Image.new("RGB", (40, 24), (255, 255, 255)), min_width=320)
    assert pixels.shape == (1, 3, 48, 320)
    assert (pixels[..., :80] == 1).all()
    assert (pixels[..., 80:] == 0).all()


def test_a_long_line_is_squeezed_only_where_a_limit_is_given() -> None:
    line = Image.new("RGB", (500, 24))
    assert reader.line_input(line, min_width=320).shape[3] == 1000
    assert reader.line_input(line, min_width=192, max_width=192).shape[3] == 192


def test_a_cut_out_is_level_and_the_right_way_round() -> None:
    picture = Image.new("RGB", (60, 40))
    picture.paste((255, 0, 0), (10, 10, 20, 20))  # the box's left half
    picture.paste((0, 0, 255), (20, 10, 30, 20))
    corners = np.array([(10, 10), (30, 10), (30, 20), (10, 20)], float)
    crop = reader.cut_out(picture, Box(corners=corners, score=1.0))
    assert crop.size == (20, 10)
    assert crop.getpixel((3, 5)) == (255, 0, 0)
    assert crop.getpixel((16, 5)) == (0, 0, 255)


def test_an_upside_down_line_is_turned_before_it_is_recognised() -> None:
    picture = Image.new("RGB", (736, 736), (255, 255, 255))
    picture.paste((0, 0, 0), (100, 300, 200, 340))  # dark on the left of the found line
    seen: list[Floats] = []

    def detect(feeds: reader.Feeds) -> reader.Arrays:
        probabilities = np.zeros((1, 1, *feeds["x"].shape[2:]), np.float32)
        probabilities[..., 310:330, 110:390] = 0.9
        return {"map": probabilities}

    def classify(feeds: reader.Feeds) -> reader.Arrays:
        del feeds
        return {"turned": np.array([[0.02, 0.98]], np.float32)}

    def recognise(feeds: reader.Feeds) -> reader.Arrays:
        seen.append(feeds["x"])
        return {"scores": _scores(1, 2)[None]}

    subject = reader.Reader(
        detect=detect, classify=classify, recognise=recognise, alphabet=["", "o", "k", " "]
    )
    page = subject.read(picture)
    assert [(line.text, line.is_upside_down) for line in page.lines] == [("ok", True)]
    assert set(page.stage_s) == {"detection", "direction", "recognition", "other"}
    width = seen[0].shape[3]
    assert seen[0][..., : width // 8].mean() > 0.9  # white: the dark end has gone to the right
