"""The recorder of notebook 02: which steps it sees in a completion, and what they earn."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.scripts import load_script

recorder = load_script("notebooks/runs/record_baselines.py")


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


def test_a_step_is_tried_with_each_baseline_and_the_model_is_put_back(monkeypatch):
    monkeypatch.setattr(recorder, "PROMPTS", 2)
    model, tokenizer = recorder.load_policy("tiny", device="cpu")
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    problems, held_out = recorder.addition_problems("train", 20), recorder.addition_problems("test", 2)
    run, gradients = recorder.one_batch(model, tokenizer, problems, held_out, seed=1000, scored=True)
    assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), before)
    assert gradients.shape == (3, len(before))
    assert set(run["after"]) == {*recorder.CONSTANTS, "1 and -1", "group"}
    torch.nn.utils.vector_to_parameters(before + recorder.STEP * (2 * gradients[0] - gradients[1]), model.parameters())
    thinking = recorder.thinking_probability(model, tokenizer, held_out)
    assert run["after"]["1 and -1"] == pytest.approx(thinking, abs=1e-5)
    assert 0 <= run["right_thinking"] <= run["thinking"] <= 16
    counts = {kind: count for kind, (count, _) in run["squared_scores"].items()}
    assert sum(counts.values()) == 16 and counts["thought, right"] == run["right_thinking"]
    assert counts["thought, right"] + counts["thought, wrong"] == run["thinking"]


def test_the_squared_length_of_a_score_is_that_of_the_gradient_of_one_answer():
    model, tokenizer = recorder.load_policy("tiny", device="cpu")
    prompts = [row["prompt"] for row in recorder.addition_problems("train", 2)]
    torch.manual_seed(0)
    rollout = recorder.sample_completions(model, tokenizer, prompts, 2, max_completion_length=40)
    asked = rollout.prompt_ids, rollout.prompt_mask
    logp, _ = recorder.score_logprobs(model, *asked, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
    total = recorder.sequence_logprob(logp, rollout.mask)
    score = torch.autograd.grad(total[3], list(model.parameters()), retain_graph=True)
    thinks, rewards = torch.tensor([False, False, False, True]), torch.tensor([0.0, 0.0, 0.0, 1.0])
    found = recorder.squared_scores(model, rollout, rewards, thinks)
    assert found["thought, right"] == [1, pytest.approx(sum(s.square().sum().item() for s in score), rel=1e-3)]
    assert found["guessed, wrong"][0] == 3 and found["thought, wrong"] == [0, 0.0]
