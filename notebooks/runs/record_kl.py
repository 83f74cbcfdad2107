"""Write tiny_kl.json: training the tiny model with a KL to the initial policy, for several weights and advantages.

    python notebooks/runs/record_kl.py

Runs with the same seed have the same prompts, random numbers and optimiser; they differ only in their arm. After each
step the probability that an answer to a held-out problem begins with <think> is computed exactly. Recorded runs are
kept, except those of the arms and seeds that are run again.
"""

import copy
import itertools
import json
import math
import sys
from dataclasses import dataclass

import torch
from recording import prepare_recording, read_json, recorder_parser

from grpo_lab.advantages import group_advantages, rloo_advantages
from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import compute_logprobs, sample_completions
from grpo_lab.tasks import addition_problems, has_thinking

G, PROMPTS, LIMIT, STEPS = 16, 8, 40, 60


@dataclass(frozen=True)
class Arm:
    """The loss of a run. Its KL term is k3 times the ratio, or k1 if `estimator` is "k1"."""

    beta: float
    estimator: str = "k3"
    divided: bool = False  # whether advantages are `group_advantages` (TRL's default) and not leave-one-out
    max_norm: float | None = None  # largest norm of the gradient, which is clipped to it; None: no clipping
    slower: int = 1  # factor of the number of steps, and divisor of the learning rate


ARMS = {
    "0": Arm(0.0),
    "0, clipped": Arm(0.0, max_norm=0.05),
    "0.5, k1": Arm(0.5, "k1"),
    "0.5": Arm(0.5),
    "1": Arm(1.0),
    "2": Arm(2.0),
    "2, divided": Arm(2.0, divided=True),
    "2, half the rate": Arm(2.0, slower=2),
}


def train(policy, reference, tokenizer, arm: Arm, steps: int, seed: int, held_out: list[dict]) -> dict:
    """Train once, with a new seed for the samples of each step; return the curves of the run."""
    rows = addition_problems("train", steps * PROMPTS, seed=seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4 / arm.slower, weight_decay=0.0)
    curves = {"thinking": [thinking_probability(policy, tokenizer, held_out)], "kl": [], "spread": [], "norm": []}
    for step in range(steps):
        batch = rows[step * PROMPTS : (step + 1) * PROMPTS]
        torch.manual_seed(1000 * seed + step)
        rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in batch], G, LIMIT)
        right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in batch for _ in range(G)])
        rewards = torch.tensor(right).view(PROMPTS, G)
        tokens = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
        logp, _ = compute_logprobs(policy, *tokens, with_entropy=False)
        with torch.no_grad():
            ref_logp, _ = compute_logprobs(reference, *tokens, with_entropy=False)
        advantages = group_advantages(rewards) if arm.divided else rloo_advantages(rewards)
        settings = {"beta": arm.beta, "kl_estimator": arm.estimator, "kl_bias_correction": arm.estimator != "k1"}
        loss, _ = policy_loss(logp, advantages.flatten(), rollout.mask, None, ref_logp, loss_type="dapo", **settings)
        optimizer.zero_grad()
        loss.backward()
        curves["norm"].append(torch.nn.utils.clip_grad_norm_(policy.parameters(), arm.max_norm or math.inf).item())
        optimizer.step()
        curves["thinking"].append(thinking_probability(policy, tokenizer, held_out))
        curves["kl"].append(torch.where(rollout.mask, logp.detach() - ref_logp, 0).sum(-1).mean().item())
        curves["spread"].append(rewards.std(-1).mean().item())  # mean standard deviation within a group
    return {name: [round(x, 4) for x in values] for name, values in curves.items()}


def count_answers(policy, tokenizer, held_out: list[dict]) -> dict:
    """Count the thinking, the right and the right thinking answers among 16 answers to each held-out problem."""
    torch.manual_seed(1)
    rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in held_out], 16, LIMIT)
    right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in held_out for _ in range(16)])
    thinks = [has_thinking(text) for text in rollout.texts]
    right_thinking = sum(r for r, t in zip(right, thinks, strict=True) if t)
    return {"n": len(thinks), "thinking": sum(thinks), "right": int(sum(right)), "right_thinking": int(right_thinking)}


@command("notebooks/runs/record_kl.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "tiny_kl.json")
    old_runs = read_json(file, {"runs": []})["runs"]
    held_out = addition_problems("test", 100, seed=1)
    base, tokenizer = load_policy("tiny", device="cpu")
    record = {
        "machine": describe_machine("cpu") | {"threads": 1},
        "settings": {
            "num_generations": G,
            "prompts": PROMPTS,
            "max_completion_length": LIMIT,
            "problems": len(held_out),
        },
        "second": [name for name in ARMS if "half the rate" in name],
        "base": count_answers(base, tokenizer, held_out),
        "runs": [run for run in old_runs if run["arm"] not in args.arms or run["seed"] not in args.seeds],
    }
    for seed, name in itertools.product(args.seeds, args.arms):
        policy = copy.deepcopy(base)
        curves = train(policy, base, tokenizer, ARMS[name], args.steps * ARMS[name].slower, seed, held_out)
        end = count_answers(policy, tokenizer, held_out)
        record["runs"].append({"arm": name, "seed": seed} | vars(ARMS[name]) | curves | {"after": end})
        print(name, seed, curves["thinking"][::10], end, file=sys.stderr, flush=True)
        record["runs"].sort(key=lambda run: (run["seed"], list(ARMS).index(run["arm"])))
        file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{file.name}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = recorder_parser("record_kl", __doc__, arms=ARMS, seeds=range(3))
    parser.add_argument("--steps", type=int, default=STEPS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
