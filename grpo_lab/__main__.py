"""`python -m grpo_lab`: which commands there are."""

import argparse
import difflib
import sys

from grpo_lab.commands import Parser, command, version_line

COMMANDS = {
    "doctor": "what works on this machine, and which command mends the rest",
    "train": "train a model on a task of the course or of your own",
    "evaluate": "how good a model is on problems that it was not trained on",
    "chat": "talk to a model",
    "models": "fetch SmolLM2-135M, a real language model for a laptop",
    "memory": "what a run takes of a device, known before it starts",
    "bench": "speed and memory as ratios: against TRL, of the log-prob head, on a card",
    "formulas": "every equation of the course, with the line of code that computes it",
    "course": "for teachers: assignments, marking, and the proof that the marking is right",
}


@command("grpo_lab")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m grpo_lab", description="Which commands there are; each explains itself with --help."
    )
    parser.add_argument("name", nargs="?", help=argparse.SUPPRESS)
    if name := parser.parse_args(arguments).name:
        parser.error(f"{name!r} is not an option; expected none, or the command itself: {_meant(name)}")
    print(version_line(), "", sep="\n")
    for name, does in COMMANDS.items():
        print(f"python -m grpo_lab.{name:10} {does}")
    print("\nEach says more with --help. The course begins with notebooks/00_start_here.ipynb: `make lab` opens it.")


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return " or ".join(f"python -m grpo_lab.{command}" for command in near or COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
