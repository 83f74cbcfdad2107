"""`python -m grpo_lab.tasks`: the tasks there are; of one of them, its options and two of its problems."""

import sys

from grpo_lab.commands import Parser, command
from grpo_lab.tasks.gym import PREFIX, generator_names, usual_options
from grpo_lab.tasks.rows import as_text
from grpo_lab.tasks.table import TASKS, find_task


@command("grpo_lab.tasks")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m grpo_lab.tasks", description=__doc__)
    parser.add_argument("task", nargs="?", help='a task; "gym" lists all that reasoning-gym has')
    name = parser.parse_args(arguments).task
    if name is None:
        abouts = {task.name: task.about for task in TASKS.values()}
        abouts |= {f"{PREFIX}NAME": "problems and verifier of reasoning-gym", "mine.jsonl": "your own rows"}
        print(*(f"{name:18}{about}" for name, about in abouts.items()), sep="\n")
    elif name == PREFIX.rstrip(":"):
        print(*generator_names(), sep="\n")
    else:
        rows = find_task(name).rows("train", 2)
        if name.startswith(PREFIX):
            print(f"defaults: {usual_options(name.split(':')[1])}\n")
        for row in rows:
            print(as_text(row["prompt"]), f"answer: {row.get('answer')}", sep="\n", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
