"""Figures of these tests are drawn in the style of the course, without a window, and closed afterwards."""

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def styled():
    import matplotlib.pyplot as plt

    from grpo_lab.teaching import plots

    with matplotlib.rc_context():
        plots.use_style()
        yield
    plt.close("all")
