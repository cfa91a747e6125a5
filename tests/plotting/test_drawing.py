"""The palette: each variant has one look in all figures, and no two look alike."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from attnlab.plotting.drawing import (
    BLACK,
    KNOWN,
    MOST,
    VERMILION,
    color_of,
    label_lines,
    looks,
    panels,
    spread_apart,
)
from tests.conftest import VARIANTS


def test_every_variant_has_its_own_color_and_dash() -> None:
    assert set(VARIANTS) <= set(KNOWN)
    assert len(set(looks(VARIANTS).values())) == len(VARIANTS)


def test_a_variant_has_one_color_whatever_else_is_in_the_figure() -> None:
    for others in ([], ["a", "b"], ["mine n_head=2", "lab/mine"]):
        styles = looks(["unscaled", "mine", *others])
        assert styles["unscaled"][0] == color_of("unscaled") == VERMILION
        assert styles["mine"][0] == color_of("mine") != BLACK
    assert looks(VARIANTS)["unscaled"] == looks(["unscaled"])["unscaled"]
    assert looks(["unscaled n_head=1"])["unscaled n_head=1"][0] == VERMILION
    assert color_of("sdpa") == color_of("causal") == BLACK


def test_settings_of_one_variant_differ_in_shade_and_dash() -> None:
    first, second = looks(["unscaled n_head=1", "unscaled n_head=4"]).values()
    assert first[0] == VERMILION != second[0] and first[1] != second[1]


def in_lab(color: str, sight: np.ndarray) -> np.ndarray:
    """A color in CIE L*a*b*, as seen by an eye that mixes linear RGB like this."""
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    rgb = sight @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ rgb.clip(0, 1) / (0.9505, 1, 1.0888)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Machado, Oliveira and Fernandes (2009), table 1, severity 1.
SIGHTS = {
    "usual": (np.eye(3), 26),
    "protanopia": (
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        20,
    ),
    "deuteranopia": (
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        17,
    ),
    "tritanopia": (
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
        16,
    ),
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_eight_variants_have_colors_that_everyone_can_tell_apart(sight: str) -> None:
    names = "sdpa unscaled flipped identical_heads gqa zero_fill rotary linear".split()
    eye, least = SIGHTS[sight]
    colors = [in_lab(color_of(name), np.array(eye)) for name in names]
    assert min(np.linalg.norm(a - b) for a, b in combinations(colors, 2)) > least


def test_no_two_names_look_alike() -> None:
    names = [f"unscaled optim.lr={n}" for n in range(MOST - 3)] + ["sdpa", "cosine", "softcap"]
    assert len(set(looks(names).values())) == MOST
    assert looks(names) == looks(reversed(names))
    with pytest.raises(ValueError, match=str(MOST + 1)):
        looks([*names, "unscaled optim.lr=a", "unscaled optim.lr=b"])


def test_labels_do_not_overlap() -> None:
    moved = spread_apart([0.1, 0.5, 0.5, 0.51, 0.9], [0.1] * 5)
    assert all(b - a > 0.0999 for a, b in pairwise(moved))
    assert (moved[0], moved[-1]) == (0.1, 0.9)


def test_labels_stand_beside_their_lines_on_a_logarithmic_axis():
    _figure, (axes,) = panels(1)
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1e3)
    axes.plot([0, 1], [1, 1], label="middle")
    label_lines(axes)
    (label,) = axes.texts
    assert label.xyann[1] == pytest.approx(0.5)
