"""Record two questions of notebook 02, put to the tiny model, in baselines.json.

    python notebooks/runs/record_baselines.py            all arms, six seeds: some ten minutes on one core
    python notebooks/runs/record_baselines.py --fast     hardly anything; into outputs/

"budget": 64 completions a step, as many prompts of a small group or few prompts of a large one. The advantage is
leave-one-out, and everything but the size of the group is the same. "process": what a reward for each step of the
working brings, by the advantages of `process_advantages`, beside the same points given to the whole completion, and
beside the answer alone. After each step P(<think>) is computed, which no sampling disturbs.
"""

import argparse
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from grpo_lab.advantages import process_advantages
from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import collect, train, update
from grpo_lab.trainer.run import Run

HERE = Path(__file__).parent
GROUPS = (2, 4, 8, 16, 64)
COMMON = {"learning_rate": 2e-4, "generation_batch_size": 64, "max_completion_length": 40, "max_steps": 12}
COMMON |= {"loss_type": "grpo", "disable_tqdm": True}
LINE = re.compile(r"(\d+)\+(\d+)=(\d+)")


def judged(text: str, answer: str) -> list[float]:
    """1 for each line of working that is a true sum, 0 for any other; then 1 or 0 for the answer."""
    working, _, rest = text.rpartition("</think>")
    lines = working.removeprefix("<think>").split("\n") if working else []
    sums = [LINE.fullmatch(line) for line in lines]
    true = [float(s is not None and int(s[1]) + int(s[2]) == int(s[3])) for s in sums]
    return [*true, float(rest == f"<answer>{answer}</answer>")]


def points_reward(completions: list[str], answer: list[str], **_) -> list[float]:
    """All points of a completion, added up."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [sum(judged(text, a)) for text, a in zip(texts, answer, strict=True)]


def step_rewards(rollout, answers: list[str], ends: set[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each step ends, and what it earns, both of shape (B, T). The answer's step ends with the completion."""
    mask = rollout.mask
    last = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
    is_end = torch.isin(rollout.completion_ids, torch.tensor(sorted(ends))) & mask & ~last | last
    earned = torch.zeros(mask.shape)
    for row, (text, answer) in enumerate(zip(rollout.texts, answers, strict=True)):
        points, places = judged(text, answer), is_end[row].nonzero()[:, 0]
        if len(points) == len(places):  # malformed completions earn nothing, at their end
            earned[row, places] = torch.tensor(points)
        else:
            is_end[row] = last[row]
    return earned, is_end


def train_by_steps(model, tokenizer, rows, config, after) -> None:
    """The loop of the trainer with one line more: advantages of tokens take the place of those of completions."""
    ends = {tokenizer.convert_tokens_to_ids("</think>"), tokenizer("\n").input_ids[0]}
    with Run(model, tokenizer, rows, config, accuracy_reward) as run:
        for step in run.steps():
            asked = run.rows_of_step(step)
            experience, _ = collect(model, tokenizer, asked, accuracy_reward, config)
            answers = [row["answer"] for row in asked for _ in range(config.num_generations)]
            earned, is_end = step_rewards(experience.rollout, answers, ends)
            by_group = (len(asked), config.num_generations, -1)
            tokens = process_advantages(earned.view(by_group), is_end.view(by_group)).flatten(0, 1)
            experience = replace(experience, advantages=tokens, active=(tokens != 0).any(-1))
            update(model, run.optimizer, experience, config, run.learning_rate(step))
            after()


def one_run(question: str, arm: str, seed: int, fast: bool) -> dict:
    model, tokenizer = load_policy("tiny", device="cpu")
    train_rows, held_out = addition_problems("train", 2000, seed=seed), addition_problems("test", 64)
    config = GRPOConfig(**COMMON, seed=seed, num_generations=8)
    if question == "budget":
        config = replace(config, num_generations=int(arm), advantage="rloo")
    if fast:
        config = replace(config, max_steps=1)
        held_out = held_out[:8]
    curve = [thinking_probability(model, tokenizer, held_out)]

    def after(*_):
        curve.append(thinking_probability(model, tokenizer, held_out))

    if arm == "a reward a step":
        train_by_steps(model, tokenizer, train_rows, config, after)
    else:
        reward = points_reward if arm == "the same points, added up" else accuracy_reward
        train(model, tokenizer, train_rows, reward, config, callback=after)
    result = evaluate(model, tokenizer, held_out, num_generations=4)
    kept = {name: round(result[name], 4) for name in ("accuracy", "think_rate", "mean_length")}
    return {"arm": arm, "seed": seed, "thinking": [round(p, 4) for p in curve]} | kept


ARMS = {
    "budget": [str(G) for G in GROUPS],
    "process": ["the answer alone", "the same points, added up", "a reward a step"],
}


@command("notebooks/runs/record_baselines.py")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python notebooks/runs/record_baselines.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fast", action="store_true", help="one step, one seed, into outputs/")
    parser.add_argument("--seeds", type=int, default=6, help="how many")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder = HERE.parents[1] / "outputs" if args.fast else HERE
    folder.mkdir(exist_ok=True)
    settings = {
        name: value for name, value in asdict(GRPOConfig(**COMMON, num_generations=8)).items() if name in COMMON
    }
    record = {"machine": machine(), "settings": settings, "budget": [], "process": []}
    for seed in range(1 if args.fast else args.seeds):
        for question, arms in ARMS.items():
            for arm in arms:
                record[question].append(one_run(question, arm, seed, args.fast))
                print(question, record[question][-1], flush=True)
                write_json(folder / "baselines.json", record)


if __name__ == "__main__":
    sys.exit(main())
