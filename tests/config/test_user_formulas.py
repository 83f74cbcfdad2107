"""The user's own loss and advantage: the same results as the package's, checks, and comparison on resuming."""

import json
import sys

import pytest
import torch

from grpo_lab import train as train_command
from grpo_lab.advantages import ADVANTAGES, RewardBatch
from grpo_lab.base.checks import InputError, RunError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.user_formulas import register_user_formula, user_function
from grpo_lab.objective import LOSSES, Loss, divides_by_update_tokens, microbatch_loss, policy_loss
from grpo_lab.trainer import train
from tests.support.refusals import refusal_of
from tests.support.resuming import metrics_in
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, same_weights, weights

FILES = {
    "my_loss": """
import torch
from grpo_lab.objective import Loss

def clip(ratio, advantages, epsilon, epsilon_high, width=1.0):
    "The clipped loss, as a paper writes it; advantages are (B, 1), so nothing has to be stretched."
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    return -torch.minimum(width * ratio * advantages, clipped * advantages)

def surrogate(batch, settings):
    return batch.logp * batch.advantages[:, None]

by_rows = Loss(surrogate, divided_by="completions", reads=())
other_argument_names = Loss(lambda b, s: surrogate(b, s), divided_by="completions", reads=())
def stopped(logp, advantages): return -(logp.detach() * advantages)
def one_number(logp, advantages): return (logp * advantages).mean()
def breaks(logp): return logp / undefined
def text(logp): return "0"
def takes_more(logp, rewards, answer): return logp
def takes_all(logp, **kwargs): return logp
def no_policy(advantages, mask): return advantages * mask
NUMBER = 3
class Kind: pass
""",
    "my_advantage": """
import torch
def median(rewards):
    return rewards - rewards.median(-1, keepdim=True).values
def scaled(rewards, scale_rewards, times=2.0):
    assert scale_rewards == "group"
    return times * (rewards - rewards.mean(-1, keepdim=True))
def flat(rewards): return rewards.flatten()
def undefined(rewards): return rewards / 0
def others(returns): return returns
""",
}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def batch(rows=4, columns=4):
    """Return tensors with as many rows as columns, so that a wrong product of (B, T) and (B,) raises no error."""
    torch.manual_seed(0)
    logp = -torch.rand(rows, columns, requires_grad=True)
    mask = torch.arange(columns) < torch.tensor([[4], [1], [3], [2]])
    return logp, torch.randn(rows), mask, logp.detach() + 0.5 * torch.randn(rows, columns)


def test_users_clipped_loss_equals_dapo_and_does_not_depend_on_micro_batches(workdir):
    register_user_formula("loss_type", "my_loss.py:clip")
    logp, advantages, mask, old_logp = batch()
    own_loss, metrics = policy_loss(logp, advantages, mask, old_logp, loss_type="my_loss.py:clip", epsilon=0.1)
    expected, _ = policy_loss(logp, advantages, mask, old_logp, loss_type="dapo", epsilon=0.1)
    gradients = [torch.autograd.grad(loss, logp, retain_graph=True)[0] for loss in (own_loss, expected)]
    assert own_loss.item() == expected.item() and torch.equal(*gradients) and "ratio" in metrics
    assert divides_by_update_tokens("my_loss.py:clip")
    parts = [
        microbatch_loss(
            logp[rows], advantages[rows], mask[rows], 4, mask.sum(), old_logp=old_logp[rows],
            loss_type="my_loss.py:clip", epsilon=0.1,
        )[0]
        for rows in (slice(0, 1), slice(1, 4))
    ]  # fmt: skip
    torch.testing.assert_close(sum(parts), expected)


@pytest.mark.parametrize("name", ["my_loss:by_rows", "my_loss:other_argument_names"])
def test_users_loss_entry_chooses_its_mean(name, workdir):
    register_user_formula("loss_type", name)
    logp, advantages, mask, _ = batch()
    expected = sum(-(logp[row][mask[row]] * advantages[row]).sum() for row in range(4)) / 4
    torch.testing.assert_close(policy_loss(logp, advantages, mask, loss_type=name)[0], expected)


def test_an_unknown_divisor_of_a_users_loss_is_refused():
    with pytest.raises(InputError, match="divided_by is 'tokens'; expected one of 'completion_tokens'"):
        Loss(lambda batch, settings: batch.logp, "tokens", ())


def test_users_advantage_gets_only_the_rewards_that_apply(workdir):
    for name in ("median", "scaled"):
        register_user_formula("advantage", f"my_advantage.py:{name}")
    from grpo_lab.trainer.collecting import compute_advantages

    nan = float("nan")
    rewards = torch.tensor([1.0, 2.0, 5.0, 4.0, nan, 1.0, nan, 4.0])
    advantages = compute_advantages(rewards, make_config(advantage="my_advantage.py:median"))
    assert advantages.tolist() == [-1, 0, 3, 2, 0, 0, 0, 3]
    advantages = compute_advantages(rewards[:4], make_config(advantage="my_advantage.py:scaled"))
    assert advantages.tolist() == [-4, -2, 4, 2]


def test_a_run_with_users_formulas_equals_that_with_the_same_formulas_of_the_library(workdir):
    register_user_formula("loss_type", "my_loss.py:clip")
    runs = []
    for loss_type in ("my_loss.py:clip", "dapo"):
        model, tokenizer = make_policy()
        config = make_config(loss_type=loss_type, num_iterations=2, beta=0.1, epsilon=0.05, max_steps=2)
        runs.append((model, train(model, tokenizer, ROWS, letter_reward, config)))
    (own_model, own_history), (library_model, library_history) = runs
    assert same_weights(weights(own_model), weights(library_model))
    own_losses, library_losses = ([line["loss"] for line in history] for history in (own_history, library_history))
    assert own_losses == library_losses and "kl" in own_history[0]


WRONG = {
    "loss_type": {
        "clip.py:f": "loss_type has 'clip.py:f'; there is no such file in ",
        "my_loss.py:": "expected module:function, such as my_loss:mine, or FILE:function, such as my_loss.py:mine",
        "my_loss.py:clop": "cannot be imported from .*AttributeError: module 'my_loss' has no attribute 'clop'",
        "my_loss.py:NUMBER": "has 'my_loss.py:NUMBER', which is int 3; expected a function",
        "my_loss.py:Kind": "which is a class; expected a function",
        "my_loss.py:takes_more": "which takes rewards, answer; expected some of logp, old_logp, ratio, advantages, ma",
        "my_loss.py:takes_all": r"which takes \*\*kwargs; expected some of",
        "my_loss.py:no_policy": "which takes advantages, mask; expected some of .*, and logp or ratio among them",
    },
    "advantage": {
        "my_advantage.py:others": "which takes returns; expected some of rewards, ",
        "my_loss.py:stopped": "which takes logp, advantages; expected",
    },
}


@pytest.mark.parametrize(("setting", "name"), [(setting, name) for setting in WRONG for name in WRONG[setting]])
def test_users_formula_errors_name_file_name_and_arguments(workdir, setting, name):
    with pytest.raises(InputError, match=WRONG[setting][name]):
        register_user_formula(setting, name)
    assert name not in LOSSES and name not in ADVANTAGES


def test_result_of_a_users_loss_is_checked(workdir):
    logp, advantages, mask, _ = batch()
    for name, message in {
        "stopped": "returned a tensor without gradient; it must not detach",
        "one_number": r"returned shape \(\); expected a tensor of shape \(4, 4\), one number per token",
        "breaks": r"failed in my_loss.py, line \d+: NameError: name 'undefined'",
        "text": "returned str; expected a tensor",
    }.items():
        register_user_formula("loss_type", f"my_loss.py:{name}")
        with pytest.raises(RunError, match=f"^loss 'my_loss.py:{name}' {message}"):
            policy_loss(logp, advantages, mask, loss_type=f"my_loss.py:{name}")
    for name, message in {
        "flat": r"returned shape \(8,\); expected .*\(2, 4\)",
        "undefined": "returned NaN or",
    }.items():
        register_user_formula("advantage", f"my_advantage.py:{name}")
        with pytest.raises(RunError, match=f"^advantage 'my_advantage.py:{name}' {message}"):
            rewards = RewardBatch(torch.zeros(2, 4), has_reward=torch.ones(2, 4, dtype=torch.bool))
            ADVANTAGES[f"my_advantage.py:{name}"].compute(rewards, make_config())


def test_settings_that_a_users_loss_does_not_read_are_refused_by_name(workdir):
    register_user_formula("loss_type", "my_loss.py:clip")
    with pytest.raises(InputError, match="delta is 3.0; leave it out: nothing reads it with loss_type = 'my_loss.p"):
        GRPOConfig(loss_type="my_loss.py:clip", delta=3.0)
    assert GRPOConfig(loss_type="my_loss.py:clip", epsilon=0.3).loss_arguments()["epsilon"] == 0.3
    with pytest.raises(InputError, match="loss_type is 'other.py:clip'; expected one of 'grpo', "):
        GRPOConfig(loss_type="other.py:clip")
    assert user_function("loss_type", "dapo") is None and user_function("advantage", "group") is None
    assert user_function("loss_type", "my_loss.py:clip").__name__ == "clip"


OWN = ["--loss", "my_loss.py:clip", "--advantage", "my_advantage.py:median"]
QUICK = ["--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--save_steps", "1"]
QUICK += ["--max_steps", "2", "--disable_tqdm", "true", "--task", "short-sums"]


def test_train_command_takes_typed_user_formulas_and_resumes_only_with_the_same_ones(checkpoint_name, workdir, capsys):
    assert train_command.main(["--model", checkpoint_name, "--output_dir", "out", *OWN, *QUICK]) == 0
    saved = json.loads((workdir / "out/grpo_config.json").read_text(encoding="utf-8"))
    assert (saved["loss_type"], saved["advantage"]) == (OWN[1], OWN[3]) and len(metrics_in(workdir / "out")) == 2
    resuming = ["--resume_from_checkpoint", "out", "--max_steps", "3"]
    error = refusal_of(train_command.main, *resuming)
    assert "--advantage is 'my_advantage.py:median' in 'out" in error
    assert "type --advantage my_advantage.py:median" in error
    error = refusal_of(train_command.main, *resuming, *OWN[2:])
    assert "--loss_type is 'my_loss.py:clip' in 'out" in error and "type --loss_type my_loss.py:clip" in error
    assert "--advantage is 'my_advantage.py:median' in" in refusal_of(train_command.main, *resuming, *OWN[:2])
    error = refusal_of(train_command.main, *resuming, "--loss", "my_loss.py:stopped", *OWN[2:])
    assert "--loss is 'my_loss.py:stopped'; expected 'my_loss.py:clip', as" in error
    assert train_command.main([*resuming, *OWN]) == 0 and len(metrics_in(workdir / "out")) == 3
    (workdir / "my_loss.py").write_text(FILES["my_loss"] + "# edited\n", encoding="utf-8")
    capsys.readouterr()
    assert train_command.main(["--resume_from_checkpoint", "out", "--max_steps", "4", *OWN]) == 2
    error = capsys.readouterr().err
    assert "loss_type differs from that of the run in 'out' (my_loss.py: was " in error
    assert "--loss is 'my_loss.py:clip'; leave it out with --engine trl" in refusal_of(
        train_command.main, "--model", checkpoint_name, "--output_dir", "trl", "--engine", "trl", *OWN[:2]
    )
