"""`python -m grpo_lab.rewards`: the rewards that have a name, and what each of them pays."""

import sys

from grpo_lab.commands import Parser, command
from grpo_lab.rewards.named import NAMED


@command("grpo_lab.rewards")
def main(arguments: list[str] | None = None) -> None:
    Parser(prog="python -m grpo_lab.rewards", description=__doc__).parse_args(arguments)
    for name, function in NAMED.items():
        print(f"{name:10}{function.__doc__.splitlines()[0]}")
    print("\nAn answer block is <answer>...</answer>, a think block <think>...</think>.")


if __name__ == "__main__":
    sys.exit(main())
