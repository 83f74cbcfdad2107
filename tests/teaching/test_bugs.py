"""Planted bugs: each changes the reading of its instrument, is shown as a diff, and is removed again."""

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.kl import kl_estimate
from grpo_lab.logprobs import completion_mask
from grpo_lab.models import load_policy
from grpo_lab.models.adapters import frozen_copy
from grpo_lab.objective import microbatch_loss
from grpo_lab.objective.surrogates import importance_ratio
from grpo_lab.rewards import accuracy_reward
from grpo_lab.tasks import addition_problems
from grpo_lab.teaching.bugs import BUGS, planted, print_log_lines
from grpo_lab.trainer import PolicyOptimizer, collect, logprobs_without_gradient, update
from grpo_lab.trainer.collecting import compute_advantages

SIZE = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 40, "temperature": 0.8}
ONE = torch.ones(2, 3, dtype=torch.bool)


def logp_difference() -> float:
    model, tokenizer = load_policy("tiny", device="cpu")
    torch.manual_seed(0)
    seen, _ = collect(model, tokenizer, addition_problems("train", 2), accuracy_reward, GRPOConfig(**SIZE))
    difference = logprobs_without_gradient(model, seen, GRPOConfig(**SIZE)) - seen.rollout.logp
    return difference[seen.loss_mask].abs().max().item()


def advantages_with_offset(offset: float) -> torch.Tensor:
    return compute_advantages(torch.tensor([0.0, 1, 0, 0, 0, 0, 0, 0]) + offset, GRPOConfig(**SIZE))


def loss_of_microbatch() -> torch.Tensor:
    return microbatch_loss(torch.full((2, 3), -1.0), torch.ones(2), ONE, 4, 12, loss_type="dapo")[0]


def ratio_slope() -> float:
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    return torch.autograd.grad(importance_ratio(logp, torch.full((2, 3), -2.0), ONE).sum(), logp)[0].sum().item()


def first_moves(precision: str | None, rate: float = 1e-5, iterations: int = 1) -> tuple[float, dict]:
    model, tokenizer = load_policy("tiny", device="cpu", precision=precision)
    config = GRPOConfig(**SIZE, num_iterations=iterations, learning_rate=rate)
    torch.manual_seed(0)
    seen, _ = collect(model, tokenizer, addition_problems("train", 2), lambda completions, **_: list(range(8)), config)
    before = [p.detach().float() for p in model.parameters()]
    metrics = update(model, PolicyOptimizer(model, config), seen, config, rate)
    after = zip(model.parameters(), before, strict=True)
    return torch.cat([(p.float() - old).abs().flatten() for p, old in after]).mean().item() / rate, metrics


READINGS = {
    "temperature-mismatch": lambda: logp_difference() > 0.01,
    "retokenised": lambda: logp_difference() > 5,
    "off-by-one": lambda: logp_difference() > 5,
    "microbatch-mean": lambda: loss_of_microbatch() < -0.9,
    "group-mixed": lambda: bool((advantages_with_offset(0)[4:] != 0).any()),
    "no-centre": lambda: not torch.allclose(advantages_with_offset(0), advantages_with_offset(1)),
    "eos-trimmed": lambda: not completion_mask(torch.tensor([[5, 2, 2]]), 2)[0, 1].item(),
    "k1-as-loss": lambda: kl_estimate(torch.tensor([[-2.0]]), torch.tensor([[-1.0]])).item() < 0,
    "ratio-quotient": lambda: ratio_slope() < 0,
    "old-not-frozen": lambda: first_moves(None, 1e-3, iterations=2)[1]["clip_ratio/region_mean"] == 0,
    "ref-not-frozen": lambda: (lambda model: frozen_copy(model) is model)(torch.nn.Linear(1, 1)),
    "pure-bf16-adamw": lambda: first_moves("bf16")[0] < 0.5,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READINGS)
def test_instrument_of_a_planted_bug_tells_it_from_the_repaired_code(name):
    assert not READINGS[name]()
    with planted(name):
        assert READINGS[name]()
    assert not READINGS[name]()


@pytest.mark.parametrize("name", BUGS)
def test_diff_of_a_planted_bug_shows_removed_and_added_lines(name):
    signs = [line[:2] for line in BUGS[name].diff().splitlines()]
    assert signs[0] == "- "
    assert "+ " in signs
    assert set(signs) == {"- ", "+ "}


def test_the_lines_of_a_log_are_printed_beside_healthy_ones(capsys):
    def runs(loss: float | None, right: float) -> list[dict]:
        return [{"right": right, "metrics": {"loss": [0.5, loss]}}] * 2

    arms = {"off-by-one": runs(None, 0.1), "healthy": runs(-0.25, 0.9), "healthy, bf16": runs(-0.5, 0.8)}
    print_log_lines(arms, {"C": "off-by-one"}, [("C", "loss", 2), ("C", "accuracy", None, "healthy, bf16")])
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[-1] == "healthy"
    assert rows == [
        ["C", "loss", "2", "NaN", "NaN", "-0.25", "-0.25"],
        ["C", "accuracy", "end", *["0.1"] * 2, *["0.8"] * 2],
    ]
