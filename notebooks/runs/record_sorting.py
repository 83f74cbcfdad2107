"""Record runs of GRPO in the sorting world in sorting.json, which notebook 03 shows.

    python notebooks/runs/record_sorting.py           all of them: some minutes on one core
    python notebooks/runs/record_sorting.py --fast    hardly anything; into outputs/

Eight seeds each, and sixteen others for "fresh seeds". Each question is a table of runs that differ in nothing but
what their settings name:

"inner steps": how many to take on one batch, at equal numbers of samples and of gradient steps, over a long axis;
"rates": the same to fewer steps at several learning rates, so that neither 1 nor 16 is judged at the other's;
"rates, 240 batches": one inner step on each of as many batches as 16 have, at several learning rates;
"losses": the three losses at five learning rates, so that none is judged at a rate that suits another;
"clip range": the clipped loss from next to no range to no clip at all;
"clip range, other rates": is a narrow range ahead at other learning rates, and a wide one behind at a small one?
"fresh seeds": rates that did best above, on seeds that took no part in the choice;
"leash": a KL penalty against a reference that is renewed or not, at several strengths, and against smaller learning
rates without any.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from grpo_lab.bench.__main__ import machine
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.sorting import LOSSES, make_prompts, train_sorting

METRICS = ("reward", "exact", "entropy")
NEVER = 10**6  # epochs until a reference is renewed that never is
STEPS = 15_360  # gradient steps of the longest runs
FEWER = 3_840  # gradient steps at which learning rates are compared
USUAL = {"epochs": 240, "learning_rate": 5e-3, "num_iterations": 4, "beta": 0.0, "ref_sync_epochs": 10, "epsilon": 0.2}
LONGER = {"epochs": 480}
RATES = (6.25e-4, 1.25e-3, 2.5e-3, 5e-3, 1e-2)
INNER_RATES = {
    "1": (2.5e-3, 5e-3, 1e-2, 2e-2),
    "4": (5e-3,),
    "16": (2.5e-3, 5e-3, 1e-2),
    "16, not clipped": (6.25e-4, 1.25e-3, 2.5e-3, 5e-3),
}
FRESH = tuple(range(100, 116))
CHOSEN = {"naive": 1.25e-3, "unclipped": 2.5e-3, "clipped": 5e-3}  # the best of each in "losses", by share sorted
SLOW_AND_LONG = ((2.5e-3, 960), (1.25e-3, 1920))  # as much learning rate times epochs as the other runs


def inner(name: str, steps: int) -> dict:
    """Settings for "16" or "16, not clipped" inner steps on each batch, and so many gradient steps in all."""
    count, _, free = name.partition(", ")
    loss = "unclipped" if free else "clipped"
    return {"num_iterations": int(count), "epochs": steps // int(count), "loss": loss, "eval_every": 15}


def fresh() -> dict[str, dict[str, dict]]:
    """Two questions of `tables`: runs at the best rates of the others, on seeds that took no part in the choice."""
    losses = {loss: {"loss": loss, "learning_rate": rate, "num_iterations": 8} for loss, rate in CHOSEN.items()}
    steps = {
        f"{name}, {rate}": inner(name, FEWER) | {"learning_rate": rate}
        for name, rate in (("16", 2.5e-3), ("1", 1e-2), ("16, not clipped", 1.25e-3))
    }
    steps["1, 0.01, 240 batches"] = inner("1", 240) | {"learning_rate": 1e-2}
    questions = {"fresh seeds, losses": losses, "fresh seeds, inner steps": steps}
    return {
        question: {name: row | {"seeds": FRESH} for name, row in rows.items()} for question, rows in questions.items()
    }


def tables() -> dict[str, dict[str, dict]]:
    """Question -> name of the run -> settings of `train_sorting` that differ from USUAL."""
    leash = {"no KL": LONGER}
    leash |= {f"renewed, beta {b}": LONGER | {"beta": b} for b in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}
    fixed = LONGER | {"ref_sync_epochs": NEVER}
    leash |= {f"never renewed, beta {b}": fixed | {"beta": b} for b in (0.01, 0.03, 0.1, 0.2, 0.3, 1.0)}
    leash |= {f"no KL, learning rate {r}": LONGER | {"learning_rate": r} for r in (2.5e-3, 1.25e-3)}
    leash |= {f"no KL, learning rate {r}, {n} epochs": {"learning_rate": r, "epochs": n} for r, n in SLOW_AND_LONG}
    return {
        "inner steps": {name: inner(name, STEPS) for name in ("1", "4", "16", "4, not clipped", "16, not clipped")},
        "rates": {
            f"{name}, {rate}": inner(name, FEWER) | {"learning_rate": rate}
            for name, rates in INNER_RATES.items()
            for rate in rates
        },
        "rates, 240 batches": {f"1, {rate}": inner("1", 240) | {"learning_rate": rate} for rate in INNER_RATES["1"]},
        "losses": {
            f"{loss}, {rate}": {"loss": loss, "learning_rate": rate, "num_iterations": 8}
            for loss in LOSSES
            for rate in RATES
        },
        "clip range": {
            str(epsilon): {"epsilon": epsilon, "num_iterations": 8}
            for epsilon in (1e-6, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
        }
        | {"none": {"loss": "unclipped", "num_iterations": 8}},
        "clip range, other rates": {
            f"{epsilon}, {rate}": {"epsilon": epsilon, "learning_rate": rate, "num_iterations": 8, "epochs": epochs}
            for epsilon, rate, epochs in ((0.02, 2.5e-3, 240), (0.02, 1e-2, 240), (0.2, 1.25e-3, 960))
        },
        **fresh(),
        "leash": leash,
    }


def made(settings: dict, seeds: range, epochs: int | None) -> dict:
    """One run: its settings, and what it measured at doubling numbers of epochs, a row for each seed."""
    settings = USUAL | settings
    seeds = settings.get("seeds", seeds)[: len(seeds) if epochs else None]  # in the fast profile no more than asked for
    epochs = epochs or settings["epochs"]
    every = min(settings.get("eval_every", 60), epochs)
    run = train_sorting(
        make_prompts(numbers=10, length=4), **(settings | {"seeds": seeds, "epochs": epochs, "eval_every": every})
    )
    kept = [i for i, epoch in enumerate(run.epochs) if _doubling(epoch, every) or epoch == epochs]
    values = {name: [[round(v, 4) for v in row] for row in run.history[name][:, kept].tolist()] for name in METRICS}
    return {"settings": settings, "epochs": [run.epochs[i] for i in kept], **values}


def _doubling(epoch: int, first: int) -> bool:
    times = epoch // first
    return epoch % first == 0 and times & (times - 1) == 0


@command("notebooks/runs/record_sorting.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = args.json or (Path("outputs") if args.fast else Path(__file__).parent) / "sorting.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    seeds, start = range(2 if args.fast else 8), time.process_time()
    runs = []
    for question, rows in tables().items():
        for name, settings in rows.items():
            run = made(settings, seeds, epochs=4 if args.fast else None)
            runs.append({"question": question, "name": name, **run})
            ends = [row[-1] for row in run["reward"]]
            print(f"{question}: {name}, reward {sum(ends) / len(ends):.2f}", flush=True)
    minutes = round((time.process_time() - start) / 60, 1)
    head = {"machine": machine(), "minutes of one core": minutes, "seeds": list(seeds), "metrics": "held-out prompts"}
    lines = ",\n".join("  " + json.dumps(run) for run in runs)
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n ]\n}}\n'
    partial = file.with_name(file.name + ".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
    print(f"{file}: {len(runs)} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_sorting.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/sorting.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
