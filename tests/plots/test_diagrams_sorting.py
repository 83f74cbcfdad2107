"""The diagrams of notebook 03: who holds which weights when, and what a policy answers."""

import pytest
import torch

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

from grpo_lab.plots import position_map, weights_timeline  # noqa: E402


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def versions(fig) -> dict[int, list[int]]:
    """The numbers in each lane, from left to right."""
    (ax,) = fig.axes
    lanes: dict[int, list] = {}
    for text in ax.texts:
        if text.get_text().isdigit():
            x, y = text.get_position()
            lanes.setdefault(round(-y), []).append((x, int(text.get_text())))
    return {lane: [version for _, version in sorted(found)] for lane, found in sorted(lanes.items())}


def test_each_lane_holds_the_versions_of_its_policy():
    assert versions(weights_timeline(epochs=4, inner=3, renewed_every=2)) == {
        0: list(range(12)),
        1: [0, 3, 6, 9],
        2: [0, 6],
    }


def test_a_reference_may_stay_and_may_be_missing():
    assert versions(weights_timeline(epochs=3, inner=1, renewed_every=None)) == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0]}
    assert list(versions(weights_timeline(epochs=3, inner=1, reference=False))) == [0, 1]


def test_the_last_reference_ends_with_the_run():
    fig = weights_timeline(epochs=4, inner=2, renewed_every=3)
    (ax,) = fig.axes
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches if bar.get_y() < -2]
    assert ends == pytest.approx([5.96, 7.96])


def test_wrong_counts_are_named():
    with pytest.raises(ValueError, match="inner is 0"):
        weights_timeline(inner=0)


def test_a_map_shows_the_probabilities_and_frames_what_is_right():
    before, after = torch.full((2, 4), 0.25), torch.eye(4)[[1, 3]]
    fig = position_map({"before": before.tolist(), "after": after.tolist()}, right=[1, 3])
    first, second = fig.axes[:2]
    assert [ax.get_title() for ax in (first, second)] == ["before", "after"]
    assert torch.equal(torch.tensor(second.images[0].get_array()).float(), after)
    assert [(round(p.get_x()), round(p.get_y())) for p in first.patches] == [(1, 0), (3, 1)]
    assert [text.get_text() for text in second.texts] == ["1", "1"]


def test_a_map_of_another_shape_is_named():
    with pytest.raises(ValueError, match="before.*has shape"):
        position_map({"before": torch.eye(4).tolist()}, right=[1, 3])
