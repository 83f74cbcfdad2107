"""The scripts of docs/own-loop.md run as printed, and with the library's formulas they give the results of `train`."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import encode_prompts
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import train, update
from grpo_lab.trainer.optim import PolicyOptimizer
from tests.support.small_policy import ROWS, make_config, make_policy, ragged_experience, same_weights, weights

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
WHOLE, ONLY_ADVANTAGE, SCORE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
SHORTER = {
    "max_steps=30": "max_steps=2, disable_tqdm=True, max_completion_length=24",
    "generation_batch_size=128": "generation_batch_size=48",
}
LIBRARY_FORMULAS = {
    "(rewards - rewards.nanmedian(-1, keepdim=True).values).nan_to_num(0)": "group_advantages(rewards)",
    "-torch.where(mask, weights[:, None] * logp, 0).sum() / mask.sum()": "policy_loss(logp, advantages, mask, "
    "loss_type='dapo')[0]",
    "import torch\n": "import torch\nfrom grpo_lab.advantages import group_advantages\n"
    "from grpo_lab.objective import policy_loss\n",
}


def play(script, folder, changes):
    """Run the script with some texts replaced, and return its variables."""
    for text, replacement in ({"outputs/own-loop": folder.as_posix()} | SHORTER | changes).items():
        assert script.count(text) == 1, text
        script = script.replace(text, replacement)
    exec(script, scope := {})
    return scope


def trained(run):
    """Run `train` with the settings of a run, without a folder; return the model and the history."""
    model, tokenizer = load_policy("tiny")
    config = run.inputs.config.with_changes(output_dir=None)
    return model, train(model, tokenizer, addition_problems("train", 2000), accuracy_reward, config)


def test_own_loop_page_trains_and_writes_its_metric_to_the_file(tmp_path):
    scope = play(WHOLE, tmp_path / "out", {})
    history = scope["run"].history
    assert [sorted({"loss", "grad_norm", "think_rate"} - metrics.keys()) for metrics in history] == [[]] * 2
    assert (tmp_path / "out/metrics.jsonl").read_text(encoding="utf-8").count('"think_rate"') == 2
    assert (tmp_path / "out/model.safetensors").exists() and scope["norm"] > 0
    experience, total, rewards = scope["experience"], 0.0, scope["experience"].rewards.tolist()
    for row, row_logp in enumerate(experience.rollout.logp):
        group = rewards[row // 16 * 16 : row // 16 * 16 + 16]
        advantage = rewards[row] - statistics.median_low(group)
        total -= (advantage if advantage > 0 else advantage / 2) * row_logp[experience.loss_mask[row]].sum().item()
    assert scope["loss"].item() == pytest.approx(total / experience.loss_mask.sum().item(), abs=1e-5)


def test_own_loop_page_with_the_librarys_advantage_and_loss_makes_the_steps_of_train(tmp_path):
    scope = play(WHOLE, tmp_path / "out", LIBRARY_FORMULAS)
    for mine, its in zip(scope["run"].history, trained(scope["run"])[1], strict=True):
        assert mine["reward"] == its["reward"]
        for name in ("loss", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], abs=2e-6), name


@pytest.mark.slow
def test_own_loop_page_with_the_librarys_advantage_equals_train_to_the_bit(tmp_path):
    imports, lines = ONLY_ADVANTAGE.split("\n\n        ")
    script = imports + "\n" + WHOLE[: WHOLE.index("        logp, _ =")] + "        " + lines
    scope = play(script, tmp_path / "out", {text: LIBRARY_FORMULAS[text] for text in list(LIBRARY_FORMULAS)[::2]})
    model, history = trained(scope["run"])
    assert same_weights(weights(scope["model"]), weights(model))
    assert [metrics["loss"] for metrics in scope["run"].history] == [metrics["loss"] for metrics in history]


def test_compute_logprobs_of_the_own_loop_page_has_value_and_gradient_of_single_rows():
    """The oracle computes the logits of each row alone, without padding, and divides them by the temperature."""
    model, tokenizer = make_policy()
    texts = [row["prompt"] for row in ROWS[:2]]
    prompt_ids, prompt_mask = encode_prompts(tokenizer, texts)
    mask = torch.arange(4) < torch.tensor([[4], [1], [3]])
    generator = torch.Generator().manual_seed(0)
    completion_ids = torch.randint(0, 10, mask.shape, generator=generator)
    prompt_of_row = torch.tensor([0, 0, 1])
    scope = locals() | {}
    exec(SCORE.replace("temperature=1.0", "temperature=0.7"), scope)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(scope["logp"][mask].sum(), parameters, retain_graph=True, allow_unused=True)
    total, logps = 0.0, []
    for row, length in enumerate(mask.sum(-1).tolist()):
        prompt = prompt_ids[prompt_of_row[row]][prompt_mask[prompt_of_row[row]].bool()]
        ids = torch.cat([prompt, completion_ids[row, :length]])
        logits = model(ids[None]).logits[0, len(prompt) - 1 : -1] / 0.7
        logps.append(logits.log_softmax(-1).gather(-1, ids[len(prompt) :, None])[:, 0])
        total = total + logps[-1].sum()
    expected = torch.autograd.grad(total, parameters, allow_unused=True)
    torch.testing.assert_close(scope["logp"][mask], torch.cat(logps), rtol=1e-4, atol=1e-5)
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)
    logits = torch.randn(1, 1, 5, generator=generator, requires_grad=True)
    (slope,) = torch.autograd.grad(token_logprobs(logits, torch.tensor([[2]]), 0.7).sum(), logits)
    p = (logits[0, 0] / 0.7).softmax(-1)
    torch.testing.assert_close(slope[0, 0], (torch.eye(5)[2] - p) / 0.7)


@pytest.mark.parametrize("wrong", [None, [1.0] * 4, torch.ones(2, 2), torch.ones(3), torch.ones(4, 4)], ids=str)
def test_advantages_of_another_kind_are_refused_where_they_are_put_in(wrong, no_checker):
    with pytest.raises((TypeError, ValueError), match=r"^experience.advantages .*; expected .*\(B,\) or \(B, T\)"):
        replace(ragged_experience([3, 1, 2, 3]), advantages=wrong)


def test_padding_of_user_advantages_is_ignored():
    experience, config = ragged_experience([3, 1, 2, 3]), make_config(generation_batch_size=4, max_completion_length=24)
    mine = torch.linspace(-1, 1, 96).view(4, 24)
    results = []
    for padding in (0.0, float("nan")):
        model, _ = make_policy()
        advantages = torch.where(experience.loss_mask, mine, padding)
        update(model, PolicyOptimizer(model, config), replace(experience, advantages=advantages), config, 0.1)
        results.append(weights(model))
    assert same_weights(*results) and not same_weights(results[0], weights(make_policy()[0]))


def test_the_advantages_of_the_page_are_zero_where_no_reward_applies():
    nan = float("nan")
    exec(WHOLE[WHOLE.index("def my_adv") : WHOLE.index("def my_loss")], scope := {})
    advantages = scope["my_advantages"](torch.tensor([[1.0, nan, 3.0, 2.0], [nan] * 4]))
    assert advantages.tolist() == [[-1, 0, 1, 0], [0] * 4]
