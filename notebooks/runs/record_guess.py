"""Record training runs of "higher or lower", the toy of notebook 11, in guess.json.

    python notebooks/runs/record_guess.py                                  all runs, about 90 minutes on one core
    python notebooks/runs/record_guess.py --settings "7 and 3" --arms plain

The name of an arm says how it differs from "plain": in the weight of the entropy bonus, the members of a group, the
credit assignment of a turn, or in that the world's tokens are trained as well. What the lesson says holds in a setting
and in its second version, at half the learning rate with twice as many steps.
"""

import sys

from recording import is_recorded, prepare_recording, read_json, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.toys import guess as toy

ARMS = {
    "plain": {},
    "entropy 0.05": {"entropy_weight": 0.05},
    "mixed secrets": {"groups": "mixed secrets"},
    "state": {"advantage": "state"},
    "words pushed": {"train_on_replies": True},
    "turn": {"advantage": "turn"},
    "entropy 0.02": {"entropy_weight": 0.02},
    "entropy 0.1": {"entropy_weight": 0.1},
    "entropy 0.2": {"entropy_weight": 0.2},
    "gigpo": {"advantage": "gigpo"},
    "state, entropy 0.05": {"advantage": "state", "entropy_weight": 0.05},
    "mixed secrets, entropy 0.05": {"groups": "mixed secrets", "entropy_weight": 0.05},
    "words pushed, entropy 0.05": {"train_on_replies": True, "entropy_weight": 0.05},
}
SETTINGS = {
    "7 and 3": {"numbers": 7, "guesses": 3, "steps": 300, "learning_rate": 2e-3, "eval_every": 20},
    "7 and 3, half the rate": {"numbers": 7, "guesses": 3, "steps": 600, "learning_rate": 1e-3, "eval_every": 40},
    "15 and 4": {"numbers": 15, "guesses": 4, "steps": 600, "learning_rate": 2e-3, "eval_every": 60},
    "15 and 4, half the rate": {"numbers": 15, "guesses": 4, "steps": 1200, "learning_rate": 1e-3, "eval_every": 120},
}  # fmt: skip
SEEDS = 3
RUN_WITH_TREE = ("entropy 0.05", "15 and 4", 0)  # arm, setting and seed of the run whose tree the lesson shows


def run(arm: str, setting: str, seed: int) -> dict:
    """Train once; return exact rewards during training, and the final most likely episode for each secret."""
    settings = dict(SETTINGS[setting])
    world = toy.GuessWorld(settings.pop("numbers"), settings.pop("guesses"))
    training = toy.train_guess(world, seed=seed, **settings, **ARMS[arm])
    record = {
        "arm": arm,
        "setting": setting,
        "seed": seed,
        "steps": training.steps,
        "reward": [round(value, 4) for value in training.rewards],
        "greedy": [round(value, 4) for value in training.greedy],
        "episodes": [world.text(tokens) for tokens in toy.greedy_episodes(training.policy)],
    }
    tree = {"tree": _sparse(toy.search_tree(training.policy))} if (arm, setting, seed) == RUN_WITH_TREE else {}
    return record | tree


def _sparse(tree) -> dict:
    """Return visits and flows of a search tree in thousandths, without values below half of one."""
    return {
        name: [[*index, round(1000 * values[tuple(index)].item())] for index in (values > 5e-4).nonzero().tolist()]
        for name, values in tree._asdict().items()
    }


@command("notebooks/runs/record_guess.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "guess.json")
    record = read_json(file, {"runs": []})
    for setting in args.settings:
        for arm in args.arms:
            for seed in args.seeds:
                if not is_recorded(record["runs"], setting=setting, arm=arm, seed=seed):
                    recorded = run(arm, setting, seed)
                    record["runs"].append(recorded)
                    about = "higher or lower: exact reward, greedy reward and search tree, a run for each seed"
                    record |= {"what": about, "machine": describe_machine("cpu"), "settings": SETTINGS}
                    write_json(file, record)
                    ends = (recorded["reward"][-1], recorded["greedy"][-1], recorded["episodes"][0])
                    print(setting, arm, seed, *ends, flush=True)


def _parser() -> Parser:
    parser = recorder_parser("record_guess", __doc__, arms=ARMS, seeds=range(SEEDS))
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
