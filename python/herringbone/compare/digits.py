"""Images of digits, 8 x 8 pixels: scikit-learn's handwritten ones, or drawn ones where scikit-learn is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["digits", "drawn", "handwritten"]

SEED = 7
COUNT = 1797
"""The number of images, the same as in scikit-learn."""
SHAPES = (
    "..####....#..#....#..#....#..#....#..#....####..",
    "....#.....##......#.......#.......#......###....",
    "..####.......#....####....#.......#.......####..",
    "..####.......#.....###.......#.......#....####..",
    "..#..#....#..#....####.......#.......#.......#..",
    "..####....#.......####.......#.......#....####..",
    "..####....#.......####....#..#....#..#....####..",
    "..####.......#......#......#......#.......#.....",
    "..####....#..#....####....#..#....#..#....####..",
    "..####....#..#....####.......#.......#....####..",
)
"""Each digit in six rows of eight pixels."""


def digits() -> tuple[Any, Any, str]:
    """Images ``(1797, 64)`` of float32 from -0.5 to 0.5, labels ``(1797,)`` of int64, and where they come from."""
    import numpy as np

    if importlib.util.find_spec("sklearn") is None:
        return (*drawn(), f"{COUNT} drawn images of digits (install scikit-learn for handwritten ones)")
    pixels, labels = handwritten()
    order = np.random.default_rng(SEED).permutation(len(pixels))
    scaled = (pixels[order] / 16 - 0.5).astype(np.float32)
    return scaled, labels[order].astype(np.int64), f"scikit-learn's {len(pixels)} images of handwritten digits"


def handwritten() -> tuple[Any, Any]:
    """Pixels ``(1797, 64)`` from 0 to 16 and labels ``(1797,)`` of scikit-learn, read from its file, because importing it takes
    seconds."""
    import numpy as np

    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found else []:
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            values = np.loadtxt(file, delimiter=",")
            return values[:, :-1], values[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def drawn() -> tuple[Any, Any]:
    """Images and labels as from :func:`digits`: shapes that are moved, blurred and covered with noise, the same ones each
    time."""
    import numpy as np

    random = np.random.default_rng(SEED)
    shapes = np.array([[pixel == "#" for pixel in shape] for shape in SHAPES], np.float32).reshape(10, 6, 8)
    labels = random.integers(0, 10, COUNT)
    images = np.zeros((COUNT, 8, 8), np.float32)
    for image, label in zip(images, labels):
        down, right, ink = random.integers(0, 3), random.integers(-1, 2), random.uniform(0.5, 1)
        image[down : down + 6] = ink * np.roll(shapes[label], right, axis=1)
        image += 0.4 * random.random() * np.roll(image, 1, axis=1)
    images += random.normal(0, 0.15, images.shape)
    return (np.clip(images, 0, 1) - 0.5).reshape(COUNT, 64).astype(np.float32), labels.astype(np.int64)
