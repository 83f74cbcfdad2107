"""Record three questions of notebook 02, put to the tiny model, in baselines.json.

    python notebooks/runs/record_baselines.py            everything: some fifteen minutes on one core
    python notebooks/runs/record_baselines.py --fast     hardly anything; into outputs/

"budget": 64 completions a step, as many prompts of a small group or few prompts of a large one. The advantage is
leave-one-out, and everything but the size of the group is the same. "process": what a reward for each step of the
working brings, by the advantages of `process_advantages`, beside the same points given to the whole completion, and
beside the answer alone. After each step P(<think>) is computed, which no sampling disturbs. "step": one step of plain
gradient ascent from the untrained model, along three gradients of the same answers: with the reward as the weight, with
1, and with leave-one-out advantages. Any constant baseline, and rewards of 1 and -1, are sums of the first two. For the
answers of the first batches also the squared length of each one's score, by what kind of answer it is.
"""

import argparse
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from grpo_lab.advantages import process_advantages, rloo_advantages
from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.policy_gradient import sequence_logprob
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import encode_prompts, sample_completions, score_logprobs
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import collect, train, update
from grpo_lab.trainer.run import Run

HERE = Path(__file__).parent
GROUPS = (2, 4, 8, 16, 64)
COMMON = {"learning_rate": 2e-4, "generation_batch_size": 64, "max_completion_length": 40, "max_steps": 12}
COMMON |= {"loss_type": "grpo", "disable_tqdm": True}
BATCHES, PROMPTS, GROUP, STEP = 64, 8, 8, 0.01  # "step": how many, of what, and the learning rate
SCORED = 16  # the batches of which every single answer's score is measured
KINDS = ("thought, right", "thought, wrong", "guessed, right", "guessed, wrong")
CONSTANTS = {"b = -1": -1.0, "b = 0": 0.0, "b = 0.17": 0.17, "b = 0.5": 0.5}
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
            experience = replace(experience, advantages=tokens)
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


def squared_scores(model, rollout, rewards: torch.Tensor, thinks: torch.Tensor) -> dict[str, list[float]]:
    """For each kind of answer: how many, and the squared lengths of their scores, added up; one pass an answer."""
    found = {kind: [0, 0.0] for kind in KINDS}
    for i, p in enumerate(rollout.prompt_of_row.tolist()):
        asked, answered = slice(p, p + 1), (slice(i, i + 1), slice(int(rollout.mask[i].sum())))
        prompt, mask = (rollout.prompt_ids[asked], rollout.prompt_mask[asked]), rollout.mask[answered]
        logp, _ = score_logprobs(model, *prompt, rollout.completion_ids[answered], mask, torch.zeros(1).long())
        score = torch.autograd.grad(sequence_logprob(logp, mask).sum(), list(model.parameters()))
        entry = found[KINDS[2 * (not thinks[i]) + (not rewards[i])]]
        entry[0] += 1
        entry[1] = round(entry[1] + sum(part.square().sum().item() for part in score), 2)
    return found


def one_batch(
    model, tokenizer, problems: list[dict], held_out: list[dict], seed: int, scored: bool = False
) -> tuple[dict, torch.Tensor]:
    """What one step would do to P(<think>) under each baseline, and the three gradients, of shape (3, parameters)."""
    torch.manual_seed(seed)
    rows = [problems[i] for i in torch.randint(len(problems), (PROMPTS,))]
    rollout = sample_completions(model, tokenizer, [row["prompt"] for row in rows], GROUP, max_completion_length=40)
    answers = [row["answer"] for row in rows for _ in range(GROUP)]
    rewards = torch.tensor(accuracy_reward(rollout.texts, answer=answers))
    prompts = rollout.prompt_ids, rollout.prompt_mask
    logp, _ = score_logprobs(model, *prompts, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
    total = sequence_logprob(logp, rollout.mask)
    weights = (rewards, torch.ones_like(rewards), rloo_advantages(rewards.view(PROMPTS, GROUP)).flatten())
    parameters = list(model.parameters())
    flat = torch.nn.utils.parameters_to_vector
    gradients = torch.stack(
        [flat(torch.autograd.grad((w * total).mean(), parameters, retain_graph=True)) for w in weights]
    )
    start, after = flat(parameters).detach(), {}
    directions = {name: gradients[0] - b * gradients[1] for name, b in CONSTANTS.items()}
    directions |= {"1 and -1": 2 * gradients[0] - gradients[1], "group": gradients[2]}
    for name, direction in directions.items():
        torch.nn.utils.vector_to_parameters(start + STEP * direction, parameters)
        after[name] = round(thinking_probability(model, tokenizer, held_out), 5)
    torch.nn.utils.vector_to_parameters(start, parameters)
    thinks = torch.tensor(["<think>" in text for text in rollout.texts])
    kept = {"seed": seed, "thinking": int(thinks.sum()), "right_thinking": int(rewards[thinks].sum())}
    if scored:
        kept |= {"squared_scores": squared_scores(model, rollout, rewards, thinks)}
    return kept | {"right_otherwise": int(rewards[~thinks].sum()), "after": after}, gradients


def steps(batches: int) -> dict:
    """All batches, and per batch the products with the gradient of P(<think>) and of the gradients with one another."""
    model, tokenizer = load_policy("tiny", device="cpu")
    problems, held_out = addition_problems("train", 20_000), addition_problems("test", 50, seed=1)
    ids = torch.tensor([[tokenizer.convert_tokens_to_ids("<think>")]]).expand(len(held_out), 1)
    prompts = encode_prompts(tokenizer, [row["prompt"] for row in held_out])
    logp, _ = score_logprobs(model, *prompts, ids, torch.ones_like(ids).bool(), torch.arange(len(held_out)))
    habit = torch.autograd.grad(logp.exp().mean(), list(model.parameters()))
    habit = torch.nn.utils.parameters_to_vector(habit)
    runs, total, products = [], 0, 0
    for i in range(batches):
        run, gradients = one_batch(model, tokenizer, problems, held_out, 1000 + i, scored=i < SCORED)
        along, between = gradients @ habit, gradients @ gradients.T
        run |= {"along_thinking": [round(x, 5) for x in along.tolist()]}
        run |= {"reward_times_one": round(between[0, 1].item(), 5), "one_times_one": round(between[1, 1].item(), 5)}
        runs.append(run)
        total, products = total + gradients, products + between
    covariance = (products - total @ total.T / batches) / max(batches - 1, 1)  # traces, of the three gradients
    settings = {"prompts": PROMPTS, "num_generations": GROUP, "learning_rate": STEP, "optimizer": "plain ascent"}
    rounded = [[round(c, 6) for c in row] for row in covariance.tolist()]
    return {"settings": settings, "at_first": round(logp.exp().mean().item(), 5), "runs": runs, "covariance": rounded}


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
    parser.add_argument("--seeds", type=int, default=6, help="how many for the groups; twice as many for the process")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder = HERE.parents[1] / "outputs" if args.fast else HERE
    folder.mkdir(exist_ok=True)
    settings = {
        name: value for name, value in asdict(GRPOConfig(**COMMON, num_generations=8)).items() if name in COMMON
    }
    record = {"machine": machine(), "settings": settings, "step": steps(2 if args.fast else BATCHES)}
    record |= {question: [] for question in ARMS}
    for question, arms in ARMS.items():
        seeds = args.seeds * (2 if question == "process" else 1)
        for seed in range(1 if args.fast else seeds):
            for arm in arms:
                record[question].append(one_run(question, arm, seed, args.fast))
                print(question, record[question][-1], flush=True)
                write_json(folder / "baselines.json", record)


if __name__ == "__main__":
    sys.exit(main())
