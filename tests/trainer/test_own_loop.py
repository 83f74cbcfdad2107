"""The scripts of docs/own-loop.md: they run as they stand, and with the library's formulas in them they are `train`."""

import re
import statistics
from pathlib import Path

import pytest

from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import train
from tests.support.worlds import same_weights, weights

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
WHOLE, ONLY_ADVANTAGE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
SHORTER = {"max_steps=30": "max_steps=2, disable_tqdm=True", "generation_batch_size=128": "generation_batch_size=32"}
LIBRARYS = {
    "rewards - rewards.median(-1, keepdim=True).values": "group_advantages(rewards)",
    "-torch.where(mask, weights[:, None] * logp, 0).sum() / mask.sum()": "policy_loss(logp, advantages, mask, "
    "loss_type='dapo')[0]",
    "import torch\n": "import torch\nfrom grpo_lab.advantages import group_advantages\n"
    "from grpo_lab.objective import policy_loss\n",
}


def play(script, folder, changes):
    """What the script leaves behind, with these texts in it changed."""
    for before, after in ({"outputs/own-loop": folder.as_posix()} | SHORTER | changes).items():
        assert script.count(before) == 1, before
        script = script.replace(before, after)
    exec(script, scope := {})
    return scope


def trained(run):
    """`train` under the same settings, without a folder."""
    model, tokenizer = load_policy("tiny")
    run.config.output_dir = None
    return model, train(model, tokenizer, addition_problems("train", 2000), accuracy_reward, run.config)


def test_the_loss_of_the_page_is_what_it_says_and_its_metric_is_in_the_file(tmp_path):
    made = play(WHOLE, tmp_path / "out", {})
    assert [sorted({"loss", "grad_norm", "think_rate"} - metrics.keys()) for metrics in made["run"].history] == [[]] * 2
    assert (tmp_path / "out/metrics.jsonl").read_text(encoding="utf-8").count('"think_rate"') == 2
    assert (tmp_path / "out/model.safetensors").exists() and made["norm"] > 0
    experience, total, rewards = made["experience"], 0.0, made["experience"].rewards.tolist()
    for row, said in enumerate(experience.rollout.logp):
        group = rewards[row // 16 * 16 : row // 16 * 16 + 16]
        advantage = rewards[row] - statistics.median_low(group)
        total -= (advantage if advantage > 0 else advantage / 2) * said[experience.mask[row]].sum().item()
    assert made["loss"].item() == pytest.approx(total / experience.mask.sum().item(), abs=1e-5)


def test_with_the_librarys_advantage_and_loss_it_makes_the_steps_of_train(tmp_path):
    made = play(WHOLE, tmp_path / "out", LIBRARYS)
    for mine, its in zip(made["run"].history, trained(made["run"])[1], strict=True):
        assert mine["reward"] == its["reward"]
        for name in ("loss", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], abs=2e-6), name


def test_with_the_librarys_advantage_alone_it_is_train_bit_for_bit(tmp_path):
    imports, lines = ONLY_ADVANTAGE.split("\n\n        ")
    script = imports + "\n" + WHOLE[: WHOLE.index("        logp, _ =")] + "        " + lines
    made = play(script, tmp_path / "out", {before: LIBRARYS[before] for before in list(LIBRARYS)[::2]})
    model, history = trained(made["run"])
    assert same_weights(weights(made["model"]), weights(model))
    assert [metrics["loss"] for metrics in made["run"].history] == [metrics["loss"] for metrics in history]
