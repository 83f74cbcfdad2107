"""Write tiny_default.json from the output folders of the default runs, with a held-out evaluation of each result.

python -m grpo_lab.train --model tiny --output_dir outputs/seed0 --seed 0      (and 1, and 2)
python notebooks/runs/record.py outputs/seed0 outputs/seed1 outputs/seed2 --machine "2 cores, x86-64, no card"
"""

import argparse
import json
import sys
from pathlib import Path

from grpo_lab.commands import Parser, command
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems

KEPT = ("reward", "rewards/think_rate/mean", "completions/mean_length", "entropy", "loss", "frac_reward_zero_std")


@command("notebooks/runs/record.py")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python notebooks/runs/record.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--machine", required=True, help="in words, for the reader")
    args = parser.parse_args(arguments)
    for folder in args.folders:
        for name in ("metrics.jsonl", "grpo_config.json"):
            if not (folder / name).is_file():
                raise ValueError(f"folders is {str(folder)!r}, without {name}; expected the output folder of a run")
    held_out = addition_problems("test", 1000, seed=1)
    runs = []
    for folder in args.folders:
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
        model, tokenizer = load_policy(folder, device="cpu")
        runs.append(
            {
                "seed": config["seed"],
                "evaluation": evaluate(model, tokenizer, held_out, num_generations=4),
                "metrics": {name: [round(step[name], 4) for step in steps] for name in KEPT},
            }
        )
    model, tokenizer = load_policy("tiny", device="cpu")
    record = {"machine": args.machine, "base": evaluate(model, tokenizer, held_out, num_generations=4), "runs": runs}
    text = json.dumps(record, indent=1)
    Path(__file__).with_name("tiny_default.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
