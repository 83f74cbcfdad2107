"""Record four experiments of notebooks 02 and further with the tiny model, in baselines.json.

    python notebooks/runs/record_baselines.py            all parts: some thirty minutes on one core
    python notebooks/runs/record_baselines.py --fast     one step, one seed; into outputs/

scatter: The variance of the gradient of a batch (8 problems with 8 answers each), at three stages of a training. Three
gradients are computed for each batch: weighted by the reward (1 or 0), by 1, and by leave-one-out advantages. The
gradient for any pair of rewards for right and wrong is a combination of the first two. For the first batches, the
squared norm of the score of each answer is recorded as well, by the kind of answer.

learning: Plain REINFORCE on sums of log-probabilities, with four pairs of rewards for right and wrong without a
baseline, with leave-one-out and with group advantages. The part "second" repeats it at two other learning rates.

budget: 64 completions per step, as many prompts with small groups or few prompts with large groups. All runs use
leave-one-out advantages and differ in the group size alone.

process: A reward for each step of the working, with `process_advantages`, compared with the same points given to the
whole completion, and with a reward for the answer alone. P(<think>) is computed exactly after each step.
"""

import itertools
import re
import sys
from dataclasses import asdict, replace

import torch
from recording import prepare_recording, read_json, recorder_parser

from grpo_lab.advantages import group_advantages, process_advantages, rloo_advantages
from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.policy_gradient import sequence_logprob
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import compute_logprobs, sample_completions
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import collect, train, update
from grpo_lab.trainer.run import Run

GROUPS = (2, 4, 8, 16, 64)
COMMON = {"learning_rate": 2e-4, "generation_batch_size": 64, "max_completion_length": 40, "max_steps": 12}
COMMON |= {"loss_type": "grpo", "disable_tqdm": True}
BATCHES, PROMPTS, GROUP = 64, 8, 8  # "scatter" and "learning": batches, prompts per batch, answers per prompt
SCORED = 12  # number of batches for which the score of each answer is measured
STAGES = (0, 12, 32)  # steps of a training with leave-one-out, after which "scatter" is measured
REWARD_PAIRS = {"1 and 0": (1, 0), "0 and -1": (0, -1), "1 and -1": (1, -1), "2 and 1": (2, 1)}  # right, wrong
ADVANTAGES = {"leave one out": rloo_advantages, "divided": group_advantages}
KINDS = ("thought, right", "thought, wrong", "guessed, right", "guessed, wrong")
LINE = re.compile(r"(\d+)\+(\d+)=(\d+)")


def step_points(text: str, answer: str) -> list[float]:
    """Return 1 for each line of the working that is a true sum and 0 for any other line, then 1 or 0 for the answer."""
    working, _, ending = text.rpartition("</think>")
    lines = working.removeprefix("<think>").split("\n") if working else []
    sums = [LINE.fullmatch(line) for line in lines]
    true = [float(s is not None and int(s[1]) + int(s[2]) == int(s[3])) for s in sums]
    return [*true, float(ending == f"<answer>{answer}</answer>")]


def points_reward(completions: list[str], answer: list[str], **_) -> list[float]:
    """Return the sum of the points of each completion."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [sum(step_points(text, a)) for text, a in zip(texts, answer, strict=True)]


def step_rewards(rollout, answers: list[str], ends: set[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reward at the end of each step of the working, and the mask of these ends.

    Args:
        rollout: Completions, of shape (B, T).
        answers: Right answer to each completion.
        ends: Ids of the tokens that end a step. The step of the answer ends with the completion.

    Returns:
        Rewards and mask, both of shape (B, T).
    """
    mask = rollout.mask
    last = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
    is_end = torch.isin(rollout.completion_ids, torch.tensor(sorted(ends))) & mask & ~last | last
    rewards = torch.zeros(mask.shape)
    for row, (text, answer) in enumerate(zip(rollout.texts, answers, strict=True)):
        points, step_ends = step_points(text, answer), is_end[row].nonzero()[:, 0]
        if len(points) == len(step_ends):  # a malformed completion gets a reward of 0 at its end
            rewards[row, step_ends] = torch.tensor(points)
        else:
            is_end[row] = last[row]
    return rewards, is_end


def train_by_steps(model, tokenizer, rows, config, callback) -> None:
    """Train with one addition to the trainer's loop: per-token advantages replace the advantages of completions."""
    ends = {tokenizer.convert_tokens_to_ids("</think>"), tokenizer("\n").input_ids[0]}
    with Run(model, tokenizer, rows, accuracy_reward, config) as run:
        for step in run.steps():
            problems = run.data_rows_of_step(step)
            experience, metrics = collect(model, tokenizer, problems, accuracy_reward, config)
            answers = [row["answer"] for row in problems for _ in range(config.num_generations)]
            rewards, is_end = step_rewards(experience.rollout, answers, ends)
            grouped_shape = (len(problems), config.num_generations, -1)
            advantages = process_advantages(rewards.view(grouped_shape), is_end.view(grouped_shape)).flatten(0, 1)
            experience = replace(experience, advantages=advantages)
            update(model, run.optimizer, experience, config, run.learning_rate(step))
            run.record(step, metrics)
            callback()


def run(question: str, arm: str, seed: int, fast: bool) -> dict:
    model, tokenizer = load_policy("tiny", device="cpu")
    train_rows, held_out = addition_problems("train", 2000, seed=seed), addition_problems("test", 64)
    config = GRPOConfig(**COMMON, seed=seed, num_generations=8)
    if question == "budget":
        config = replace(config, num_generations=int(arm), advantage="rloo")
    if fast:
        config = replace(config, max_steps=1)
        held_out = held_out[:8]
    curve = [thinking_probability(model, tokenizer, held_out)]

    def record_thinking(*_):
        curve.append(thinking_probability(model, tokenizer, held_out))

    if arm == "a reward a step":
        train_by_steps(model, tokenizer, train_rows, config, record_thinking)
    else:
        reward = points_reward if arm == "the same points, added up" else accuracy_reward
        train(model, tokenizer, train_rows, reward, config, callback=record_thinking)
    result = evaluate(model, tokenizer, held_out, num_generations=4)
    measures = {name: round(result[name], 4) for name in ("accuracy", "think_rate", "mean_length")}
    return {"arm": arm, "seed": seed, "thinking": [round(p, 4) for p in curve]} | measures


def squared_scores(model, rollout, rewards: torch.Tensor, thinks: torch.Tensor) -> dict[str, list[float]]:
    """Return, for each kind of answer, their number and the sum of the squared norms of their scores."""
    totals = {kind: [0, 0.0] for kind in KINDS}
    for i, p in enumerate(rollout.prompt_of_row.tolist()):
        prompt_row, completion_part = slice(p, p + 1), (slice(i, i + 1), slice(int(rollout.mask[i].sum())))
        prompt, mask = (rollout.prompt_ids[prompt_row], rollout.prompt_mask[prompt_row]), rollout.mask[completion_part]
        logp, _ = compute_logprobs(model, *prompt, rollout.completion_ids[completion_part], mask, torch.zeros(1).long())
        score = torch.autograd.grad(sequence_logprob(logp, mask).sum(), list(model.parameters()))
        entry = totals[KINDS[2 * (not thinks[i]) + (not rewards[i])]]
        entry[0] += 1
        entry[1] = round(entry[1] + sum(part.square().sum().item() for part in score), 2)
    return totals


def sample_batch(model, tokenizer, problems: list[dict]) -> tuple:
    """Sample a batch; return the rollout, its rewards and the log-probability of each answer, the latter two (B,)."""
    rows = [problems[i] for i in torch.randint(len(problems), (PROMPTS,))]
    rollout = sample_completions(model, tokenizer, [row["prompt"] for row in rows], GROUP, max_completion_length=40)
    rewards = torch.tensor(accuracy_reward(rollout.texts, answer=[row["answer"] for row in rows for _ in range(GROUP)]))
    prompts = rollout.prompt_ids, rollout.prompt_mask
    logp, _ = compute_logprobs(model, *prompts, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
    return rollout, rewards, sequence_logprob(logp, rollout.mask)


def answer_weights(arm: str, rewards: torch.Tensor) -> torch.Tensor:
    """Return the weight of each answer's log-probability in the loss of an arm, of shape (B,)."""
    if arm in ADVANTAGES:
        return ADVANTAGES[arm](rewards.view(PROMPTS, GROUP)).flatten()
    right, wrong = REWARD_PAIRS[arm]
    return wrong + (right - wrong) * rewards


def reinforce(model, tokenizer, arm: str, seed: int, steps: int, callback=None, rate: float = 2e-4) -> list[float]:
    """Train by REINFORCE with AdamW; return the share of right answers of each step, on problems not seen before."""
    problems = addition_problems("train", 20_000)
    parameters, shares = list(model.parameters()), []
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    for step in range(steps):
        torch.manual_seed(10_000 * seed + step)
        _, rewards, logp = sample_batch(model, tokenizer, problems)
        (-(answer_weights(arm, rewards) * logp).mean()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shares.append(rewards.mean().item())
        if callback is not None:
            callback(step + 1)
    return shares


def learning_run(arm: str, seed: int, steps: int, rate: float = 2e-4) -> dict:
    model, tokenizer = load_policy("tiny", device="cpu")
    right = reinforce(model, tokenizer, arm, seed, steps, rate=rate)
    held_out = addition_problems("test", 200, seed=1)
    end = evaluate(model, tokenizer, held_out, num_generations=4)["accuracy"]
    thinking = thinking_probability(model, tokenizer, held_out[:64])
    ends = {"accuracy": round(end, 4), "thinking": round(thinking, 4)}
    return {"arm": arm, "seed": seed, "right": [round(share, 4) for share in right]} | ends


def measure_gradients(model, tokenizer, step: int, batches: int) -> dict:
    """Measure the variance of the gradient at one stage of a training.

    Returns:
        The share of right answers, the squared norm of the mean gradient, the covariances of the three gradients
        (traces), and the squared norms of scores by the kind of answer.
    """
    problems, flat = addition_problems("train", 20_000), torch.nn.utils.parameters_to_vector
    total = 0
    products = 0
    right = 0
    scores = {kind: [0, 0.0] for kind in KINDS}
    for i in range(batches):
        torch.manual_seed(1_000_000 + i)
        rollout, rewards, logp = sample_batch(model, tokenizer, problems)
        weights = (rewards, torch.ones_like(rewards), answer_weights("leave one out", rewards))
        parameters = list(model.parameters())
        g = torch.stack([flat(torch.autograd.grad((w * logp).mean(), parameters, retain_graph=True)) for w in weights])
        total = total + g
        products = products + g @ g.T
        right = right + rewards.mean().item()
        if i < SCORED:
            thinks = torch.tensor(["<think>" in text for text in rollout.texts])
            for kind, (count, length) in squared_scores(model, rollout, rewards, thinks).items():
                scores[kind] = [scores[kind][0] + count, round(scores[kind][1] + length, 2)]
    covariance = (products - total @ total.T / batches) / max(batches - 1, 1)
    rounded = [[round(c, 6) for c in row] for row in covariance.tolist()]
    mean = (total[2] / batches).square().sum().item()
    summary = {"step": step, "right": round(right / batches, 4), "mean_squared": round(mean, 5)}
    return summary | {"covariance": rounded, "squared_scores": scores}


def measure_stages(batches: int, stages: tuple[int, ...]) -> list[dict]:
    model, tokenizer = load_policy("tiny", device="cpu")
    stages_measured = [measure_gradients(model, tokenizer, 0, batches)]

    def measure(step: int) -> None:
        if step in stages:
            stages_measured.append(measure_gradients(model, tokenizer, step, batches))

    reinforce(model, tokenizer, "leave one out", 99, max(stages), measure)
    return stages_measured


SECOND = {"half the rate": (1e-4, 48), "5/2 of the rate": (5e-4, 24)}  # learning rate and steps, with three seeds
ARMS = {
    "budget": [str(G) for G in GROUPS],
    "process": ["the answer alone", "the same points, added up", "a reward a step"],
}
PARTS = ("scatter", "learning", "second", *ARMS)


@command("notebooks/runs/record_baselines.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "baselines.json")
    settings = {
        name: value for name, value in asdict(GRPOConfig(**COMMON, num_generations=8)).items() if name in COMMON
    }
    old = read_json(file, {}) if args.only else {}
    record = {"machine": describe_machine(), "settings": settings} | {name: old.get(name, []) for name in PARTS}
    parts = args.only or PARTS
    if "scatter" in parts:
        record["scatter"] = measure_stages(2, (0, 1)) if args.fast else measure_stages(BATCHES, STAGES)
        write_json(file, record)

    def add(part: str, result: dict) -> None:
        record[part].append(result)
        print(part, result, flush=True)
        write_json(file, record)

    if "learning" in parts:
        record["learning"] = []
        for seed, arm in itertools.product(range(1 if args.fast else 2 * args.num_seeds), (*REWARD_PAIRS, *ADVANTAGES)):
            add("learning", learning_run(arm, seed, 1 if args.fast else 24))
    if "second" in parts:
        record["second"] = []
        arms = ("1 and 0", "leave one out", "2 and 1")
        for seed, name, arm in itertools.product(range(1 if args.fast else 3), SECOND, arms):
            rate, steps = SECOND[name]
            add("second", {"setting": name} | learning_run(arm, seed, 1 if args.fast else steps, rate))
    for question in [question for question in ARMS if question in parts]:
        record[question] = []
        seeds = args.num_seeds * (2 if question == "process" else 1)
        for seed, arm in itertools.product(range(1 if args.fast else seeds), ARMS[question]):
            add(question, run(question, arm, seed, args.fast))


def _parser() -> Parser:
    parser = recorder_parser("record_baselines", __doc__, fast_help="one step, one seed")
    help_text = "how many for the groups; twice as many for the others (default 6)"
    parser.add_argument("--seeds", dest="num_seeds", type=int, default=6, help=help_text)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="the rest stays as it is")
    return parser


if __name__ == "__main__":
    sys.exit(main())
