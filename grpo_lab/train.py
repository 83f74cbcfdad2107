"""`python -m grpo_lab.train --model tiny --output_dir DIR --seed 0`: the training of notebook 07, from a shell."""

import argparse
from dataclasses import fields

from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import settings_parser
from grpo_lab.precision import precision_asked
from grpo_lab.rewards import accuracy_reward, completion_text
from grpo_lab.tasks import addition_problems, has_thinking
from grpo_lab.trainer import train

TRAINING_PROBLEMS = 20_000


def think_rate(completions, **kwargs) -> list[float]:
    """Say of each completion whether it thinks. With weight 0 it is no reward; its mean is reported."""
    return [float(has_thinking(completion_text(completion))) for completion in completions]


REWARDS = [accuracy_reward, think_rate]
REWARD_WEIGHTS = [1.0, 0.0]


def main(arguments: list[str] | None = None) -> None:
    from grpo_lab.memory import announce
    from grpo_lab.models import load_policy, one_thread_if_small

    parser = _parser()
    settings = {"reward_weights": REWARD_WEIGHTS} | vars(parser.parse_args(arguments))
    name = settings.pop("model")
    try:
        config = GRPOConfig(**settings)
    except ValueError as error:
        parser.error(str(error))
    model, tokenizer = load_policy(name, precision=precision_asked(config))
    one_thread_if_small(model)
    rows = addition_problems("train", TRAINING_PROBLEMS, config.seed)
    announce(model, tokenizer, rows, config)
    history = train(model, tokenizer, rows, REWARDS, config)
    if history:
        last = history[-1]
        print(f"step {last['step']}: reward {last['reward']:.3f}, thinking {last['rewards/think_rate/mean']:.2f}")
    print(f"saved to {config.output_dir}")
    print(f"measure it on held-out problems: python -m grpo_lab.evaluate --model {config.output_dir}")


def _parser() -> argparse.ArgumentParser:
    optional = [field.name for field in fields(GRPOConfig) if field.name != "output_dir"]
    parser = settings_parser("grpo_lab.train", optional)
    parser.description = "Train with GRPO on sums; the reward is 1 for a right answer, 0 for a wrong one."
    parser.add_argument("--model", default="tiny", help='"tiny", "auto", a folder or a hub id (default tiny)')
    parser.add_argument(
        "--output_dir", required=True, help="folder for checkpoints, metrics.jsonl and the trained model"
    )
    return parser


if __name__ == "__main__":
    main()
