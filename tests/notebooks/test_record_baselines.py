"""The recorder of notebook 02: which steps it sees in a completion, and what they earn."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

PATH = Path(__file__).parents[2] / "notebooks" / "runs" / "record_baselines.py"
spec = importlib.util.spec_from_file_location("record_baselines", PATH)
recorder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recorder)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("<think>92+22=114\n114+16=130</think><answer>130</answer>", [1, 1, 1]),
        ("<think>92+22=115\n115+16=131</think><answer>131</answer>", [0, 1, 0]),
        ("<answer>130</answer>", [1]),
        ("<answer>131</answer>", [0]),
        ("<think>92+22</think>130", [0, 0]),
    ],
)
def test_points(text, points):
    assert recorder.judged(text, "130") == points
    assert recorder.points_reward([text], ["130"]) == [sum(points)]


def test_steps_end_at_line_ends_and_the_last_one_with_the_completion():
    ids = torch.tensor([[7, 1, 7, 2, 7, 9, 0], [7, 9, 0, 0, 0, 0, 0], [7, 1, 1, 9, 0, 0, 0]])
    mask = torch.tensor([[True] * 6 + [False], [True] * 2 + [False] * 5, [True] * 4 + [False] * 3])
    texts = ["<think>1+1=2\n2+2=5</think><answer>4</answer>", "<answer>4</answer>", "\n\n<answer>4</answer>"]
    rollout = SimpleNamespace(completion_ids=ids, mask=mask, texts=texts)
    earned, ends = recorder.step_rewards(rollout, ["4"] * 3, {1, 2})
    assert ends.nonzero().tolist() == [[0, 1], [0, 3], [0, 5], [1, 1], [2, 3]]
    assert earned[ends].tolist() == [1, 0, 1, 1, 0]  # the third has no working, but line ends: it earns nothing
