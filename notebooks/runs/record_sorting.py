"""Record runs of notebook 03 with several clip ranges and rewards in sorting.json, until the curves are flat.

    python notebooks/runs/record_sorting.py                    all arms in all settings, about 15 minutes on one core
    python notebooks/runs/record_sorting.py --settings "4 steps" --arms "both tight"

What the lesson says holds for "4 steps" and for the second settings.
"""

import sys

import torch
from recording import is_recorded, prepare_recording, read_json, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.toys import sorting as toy

TIGHT, OPEN = 1e-6, 1e9
BOUNDS = {  # below and above 1
    "0.2 and 0.2": (0.2, 0.2), "both tight": (TIGHT, TIGHT), "upper tight": (0.2, TIGHT), "lower tight": (TIGHT, 0.2),
    "both open": (1.0, OPEN),
}  # fmt: skip
# The arms below have the bounds 0.2 and 0.2. Entropy bonus: the reward of each token plus -0.2 log pi, whose mean is
# the entropy.
BONUS = {"entropy bonus": 0.2}
CONTROL = "one inner step"  # the same number of updates, each on new samples: all ratios are 1, so no bound acts
PROMPTS_AND_REWARDS = {
    "right positions": ("none", lambda x, y: (x.sort(-1).values == y).sum(-1).float()),
    "all or nothing": ("none", toy.exact_reward),
    "gameable": ("only", toy.sorting_reward),
    "repaired": ("only", toy.repaired_reward),
}
ARMS = [*BOUNDS, *BONUS, CONTROL, *PROMPTS_AND_REWARDS]
SETTINGS = {
    "4 steps": {"num_iterations": 4, "learning_rate": 5e-3, "rounds": 640},
    "8 steps": {"num_iterations": 8, "learning_rate": 5e-3, "rounds": 640},
    "8 steps, half the rate": {"num_iterations": 8, "learning_rate": 2.5e-3, "rounds": 960},
}
SECOND = ["8 steps", "8 steps, half the rate"]
SEEDS, EVERY = 8, 20


def make_clipped_loss(low: float, high: float, bonus: float = 0.0):
    """Return the clipped loss with the range 1 - low to 1 + high, and an entropy bonus of weight `bonus`."""

    def loss(logp, old_logp, advantages):
        ratio, weight = (logp - old_logp).exp(), advantages[:, None] - bonus * old_logp
        return -torch.min(ratio * weight, ratio.clamp(1 - low, 1 + high) * weight).mean()

    return loss


def run(arm: str, setting: str) -> dict:
    """Train with all seeds; return the curves, and how far the final most likely responses are from sorted."""
    duplicates, reward = PROMPTS_AND_REWARDS.get(arm, ("none", toy.sorting_reward))
    numbers = 8 if duplicates == "only" else 10
    prompts = toy.make_prompts(numbers=numbers, length=4, duplicates=duplicates)
    loss = make_clipped_loss(*BOUNDS.get(arm, (0.2, 0.2)), BONUS.get(arm, 0.0))
    settings = SETTINGS[setting] | {"seeds": range(SEEDS), "eval_every": EVERY, "loss": loss}
    if arm == CONTROL:  # points of its curve follow after as many updates as in the other arms
        inner = settings["num_iterations"]
        settings |= {"num_iterations": 1, "rounds": inner * settings["rounds"], "eval_every": inner * EVERY}
    training = toy.train_sorting(prompts, reward=reward, **settings)
    greedy = toy.greedy_responses(training.policy, prompts.held_out)
    wrong = (greedy != prompts.held_out.sort(-1).values).sum(-1)  # shape (seeds, prompts)
    points = torch.stack([toy.sorting_reward(prompts.held_out, y) for y in greedy])
    names = ("exact", "gamed", "entropy") if duplicates == "only" else ("exact", "entropy")
    curves = {name: [[round(v, 3) for v in row] for row in training.history[name].tolist()] for name in names}
    one_short = [[int((w[p == 6] == n).sum()) for n in range(1, 5)] for w, p in zip(wrong, points, strict=True)]
    return {"arm": arm, "setting": setting, "rounds": training.rounds} | curves | {"six_points": one_short}


@command("notebooks/runs/record_sorting.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "sorting.json")
    runs = read_json(file, {"runs": []})["runs"]
    for setting in args.settings:
        for arm in args.arms:
            if not is_recorded(runs, setting=setting, arm=arm):
                runs.append(run(arm, setting))
                about = "the toy of notebook 03, held-out responses: fraction sorted, entropy; a row for each seed"
                head = {"what": about, "machine": describe_machine(), "settings": SETTINGS, "second": SECOND}
                write_json(file, head | {"runs": runs})
                print(setting, arm, runs[-1]["exact"], flush=True)


def _parser() -> Parser:
    parser = recorder_parser("record_sorting", __doc__, arms=ARMS)
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
