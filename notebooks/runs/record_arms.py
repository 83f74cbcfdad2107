"""Write tiny_arms.json: short runs of notebook 07's loop that each differ in one thing.

    python notebooks/runs/record_arms.py                      all arms, three seeds
    python notebooks/runs/record_arms.py --seeds 3 4          two more seeds; recorded runs are kept
The record also has "shuffled" with seeds 3 to 18.

Each arm is repeated at half the learning rate with twice as many steps, which shows whether the sign of its effect
stays.

All arms have the same number of samples and steps, the same optimiser and the same seeds. At the end three
probabilities are computed from the logits, without sampling: of <think>, of the right working after it, and of the
right number as a guess.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from recording import is_recorded, prepare_recording, read_json, recorder_parser
from torch import Tensor

from grpo_lab.advantages import group_advantages
from grpo_lab.base import Parser, command
from grpo_lab.base.checks import check_at_least
from grpo_lab.bench.record import describe_machine
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import compute_logprobs, encode_prompts, sample_completions
from grpo_lab.tasks import addition_problems, has_thinking

G, PROMPTS, STEPS, LEARNING_RATE, WARMUP = 16, 8, 30, 2e-4, 5
LIMIT = 64  # tokens of a completion at most


@dataclass(frozen=True)
class Arm:
    """What distinguishes a run: its rewards, the tokens in its loss, the beginning of each answer, its size."""

    description: str
    change_rewards: Callable[[Tensor], Tensor] = lambda rewards: rewards  # shape (P, G)
    loss_mask: Callable[[Tensor], Tensor] = lambda mask: mask  # shape (B, T)
    begin: str = ""
    problems: int = 20_000  # distinct training problems, repeated if the run needs more
    steps: int = STEPS
    learning_rate: float = LEARNING_RATE


ARMS = {
    "real": Arm("1 for a right answer, else 0"),
    "shuffled": Arm(
        "the rewards of a group change places",
        change_rewards=lambda rewards: torch.stack([group[torch.randperm(G)] for group in rewards]),
    ),
    "wrong rewarded": Arm("1 for a wrong answer, else 0", change_rewards=lambda rewards: 1 - rewards),
    "first token": Arm(
        "the first token of an answer alone enters the loss", loss_mask=lambda mask: mask & (mask.cumsum(1) == 1)
    ),
    "all but first": Arm("all tokens but the first enter the loss", loss_mask=lambda mask: mask & (mask.cumsum(1) > 1)),
    "no thought": Arm("each answer begins with <answer>", begin="<answer>"),
    "16 problems": Arm("1 for a right answer, else 0; 16 problems, each met fifteen times", problems=16),
}
for name in tuple(ARMS):
    slow = f"{ARMS[name].description}; half the rate, twice as many steps"
    ARMS[f"{name}, half the rate"] = replace(
        ARMS[name], description=slow, steps=2 * STEPS, learning_rate=LEARNING_RATE / 2
    )


def sample_completions_with(model, tokenizer, rows: list[dict], n: int, begin: str):
    """Sample n answers to each problem that begin with `begin`; return rollout, texts and rewards (1 or 0)."""
    prompts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    rollout = sample_completions(model, tokenizer, [text + begin for text in prompts], n, LIMIT)
    texts, answer = [begin + text for text in rollout.texts], [row["answer"] for row in rows for _ in range(n)]
    return rollout, texts, torch.tensor(accuracy_reward(texts, answer=answer))


def train_step(arm: Arm, model, tokenizer, optimizer, rows: list[dict], lr: float) -> float:
    """Take one step as in the notebook, without the groups of equal rewards; return the share of right answers."""
    rollout, _, right = sample_completions_with(model, tokenizer, rows, G, arm.begin)
    advantages = group_advantages(arm.change_rewards(right.view(-1, G))).flatten()
    num_items, has_gradient = rollout.mask.sum(), advantages != 0
    optimizer.zero_grad()
    if has_gradient.any():
        part = rollout[has_gradient]
        inputs = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.mask, part.prompt_of_row)
        logp, _ = compute_logprobs(model, *inputs, with_entropy=False)
        loss, _ = policy_loss(
            logp, advantages[has_gradient], arm.loss_mask(part.mask), loss_type="dapo", num_items=num_items
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return round(right.mean().item(), 4)


def run(arm: Arm, seed: int, held_out: list[dict]) -> dict:
    """Train once; return the reward of each step and the measures of the trained policy."""
    model, tokenizer = load_policy("tiny", device="cpu")
    train_rows = addition_problems("train", 20_000, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arm.learning_rate, weight_decay=0.0)
    torch.manual_seed(seed)
    rewards = []
    for step in range(arm.steps):
        first_row = step * PROMPTS % arm.problems
        rows = train_rows[first_row : first_row + PROMPTS]
        lr = arm.learning_rate * min(1, (step + 1) / WARMUP)
        rewards.append(train_step(arm, model, tokenizer, optimizer, rows, lr))
    return {"rewards": rewards, "after": measure_policy(model, tokenizer, held_out, arm.begin)}


@torch.no_grad()
def probability(model, tokenizer, rows: list[dict], texts: list[str], prefix_tokens: int = 0) -> Tensor:
    """Return the mean probability of the answers `texts`, given their first `prefix_tokens` tokens."""
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    prompts, mask = encode_prompts(tokenizer, [row["prompt"] for row in rows]), encoded.attention_mask.bool()
    logp, _ = compute_logprobs(model, *prompts, encoded.input_ids, mask, torch.arange(len(rows)), with_entropy=False)
    return torch.where(mask, logp, 0)[:, prefix_tokens:].sum(-1).exp().mean()


def measure_policy(model, tokenizer, held_out: list[dict], begin: str = "") -> dict:
    """Return three exact probabilities, and counts from one sampled answer to each held-out problem."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        _, texts, right = sample_completions_with(model, tokenizer, held_out, 1, begin)
    thinks = torch.tensor([has_thinking(text) for text in texts])
    guesses = [f"<answer>{row['answer']}</answer>{tokenizer.eos_token}" for row in held_out]
    workings = []
    for (a, b, c), guess in zip((row["operands"] for row in held_out), guesses, strict=True):
        workings.append(f"<think>{a}+{b}={a + b}\n{a + b}+{c}={a + b + c}</think>{guess}")
    exact = {
        "thinks": probability(model, tokenizer, held_out, ["<think>"] * len(held_out)),
        "right_then": probability(model, tokenizer, held_out, workings, prefix_tokens=1),
        "right_guess": probability(model, tokenizer, held_out, guesses, prefix_tokens=1),
    }
    return {
        "n": len(held_out),
        "thinking": int(thinks.sum()),
        "right": int(right.sum()),
        "right_thinking": int(right[thinks].sum()),
    } | {name: round(value.item(), 4) for name, value in exact.items()}


@command("notebooks/runs/record_arms.py")
def main(arguments: list[str] | None = None) -> None:
    settings = {"num_generations": G, "prompts": PROMPTS, "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP}
    second = "each arm again at half the rate with twice as many steps"
    record_runs(_parser().parse_args(arguments), "tiny_arms.json", ARMS, run, second, settings)


def record_runs(
    args: argparse.Namespace, file_name: str, arms: dict, run: Callable, second: str, settings: dict
) -> None:
    """Make the runs that the record lacks, and write the record after each run.

    Args:
        args: Parsed options: `arms`, `seeds`, `problems` (number of held-out problems) and those of every recorder.
        file_name: Name of the record beside this script.
        arms: All arms by name, each with a `description`.
        run: Function that takes an arm, a seed and the held-out problems, and returns the results of one run.
        second: Description of the second setting, for the record.
        settings: Settings of all runs, for the record.
    """
    check_at_least("problems", args.problems, 100)
    file = prepare_recording(args, file_name)
    held_out = addition_problems("test", args.problems, seed=1)
    model, tokenizer = load_policy("tiny", device="cpu")
    record = {
        "machine": describe_machine("cpu") | {"threads": 1},
        "second": second,
        "settings": settings,
        "arms": {name: arm.description for name, arm in arms.items()},
        "base": measure_policy(model, tokenizer, held_out),
        "runs": read_json(file, {"runs": []})["runs"],
    }
    order = {name: index for index, name in enumerate(arms)}
    for seed in args.seeds:
        for name in args.arms:
            if not is_recorded(record["runs"], arm=name, seed=seed):
                recorded = run(arms[name], seed, held_out)
                record["runs"].append({"arm": name, "seed": seed} | recorded)
                record["runs"].sort(key=lambda recorded: (order[recorded["arm"]], recorded["seed"]))
                file.write_text(json.dumps(record) + "\n", encoding="utf-8")
                print(name, seed, recorded["after"], file=sys.stderr, flush=True)
    print(f"{file.name}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = recorder_parser("record_arms", __doc__, arms=ARMS, seeds=range(3))
    parser.add_argument("--problems", type=int, default=500, help="held out (default 500)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
