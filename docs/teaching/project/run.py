"""Make the runs and the figure of the sample report: `python docs/teaching/project/run.py --figure`; ten minutes.

Each run is one call of `grpo-lab train`, and each row of the report's table one call of `grpo-lab evaluate`. `--print`
shows these commands. Runs that are in results.json are skipped; delete the file to repeat all of them.
"""

import argparse
import contextlib
import io
import itertools
import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo_lab import evaluate, train
from grpo_lab.base.files import write_atomically

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SEEDS, STEPS = (0, 1, 2), 25
COSTS = (0.01, 0.05)  # penalty per token; the reward of a right answer is 1
ARMS = ("no price", "on_all", "on_right", "exchanged")

WORDS = {
    "en": {
        "no price": "no price",
        "on_all": "every answer pays",
        "on_right": "right answers pay",
        "exchanged": "control: lengths exchanged",
        "step": "step",
        "accuracy": "share of right answers, sampled",
        "length": "mean length in tokens",
    },
    "zh_CN": {
        "no price": "不扣分",
        "on_all": "每个回答都扣分",
        "on_right": "只扣正确的回答",
        "exchanged": "对照：长度互换",
        "step": "步",
        "accuracy": "采样回答的正确率",
        "length": "平均长度（词元）",
    },
}


def runs() -> Iterator[tuple[str, float, int]]:
    """Yield arm, cost per token and seed of each run; the arm without a price runs once per seed, at cost 0."""
    for cost, arm, seed in itertools.product(COSTS, ARMS, SEEDS):
        if arm != "no price" or cost == COSTS[0]:
            yield arm, 0.0 if arm == "no price" else cost, seed


def commands(arm: str, cost: float, seed: int, folder: str) -> tuple[list[str], list[str]]:
    """Return the arguments of the training run, and of the evaluation on 250 held-out sums with four answers each."""
    price = [] if arm == "no price" else [f"{HERE / 'rewards.py'}:{arm}"]
    weights = [] if arm == "no price" else ["--reward_weights", "1", str(cost)]
    run = ["--model", "tiny", "--task", "sums", "--reward_funcs", "accuracy", *price, *weights]
    run += ["--generation_batch_size", "64", "--num_generations", "8", "--max_steps", str(STEPS)]
    run += ["--save_steps", "0", "--disable_tqdm", "true", "--seed", str(seed), "--output_dir", folder]
    return run, ["--model", folder, "--reward_funcs", "accuracy", "--n", "250"]


def one_run(arm: str, cost: float, seed: int) -> dict:
    """Train and evaluate; return accuracy and length of sampled answers per step, and the final held-out measures."""
    with tempfile.TemporaryDirectory() as folder:
        training, counting = commands(arm, cost, seed, f"{folder}/run")
        train.main(training)
        metrics = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in metrics.splitlines()]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            evaluate.main(counting)
        counts = json.loads(printed.getvalue().splitlines()[-1])
    accuracy = [round(line["rewards/accuracy_reward/mean"], 4) for line in lines]
    length = [round(line["completions/mean_length"], 2) for line in lines]
    end = {name: round(counts[name], 4) for name in ("accuracy", "mean_length", "think_rate")}
    return {"arm": arm, "cost": cost, "seed": seed, "accuracy": accuracy, "length": length, "end": end}


def draw(results: list[dict], lang: str) -> None:
    """Plot accuracy and length of the sampled answers over the steps, at the higher price, one line per seed."""
    import matplotlib.pyplot as plt

    from grpo_lab.teaching.plots.style import DPI, use_style

    use_style()
    words = WORDS[lang]
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharex=True, layout="constrained")
    styles = zip(ARMS, ("#000000", "#D55E00", "#0072B2", "#009E73"), ("-", "--", ":", "-."), strict=True)
    for arm, colour, dashes in styles:
        shown = [run for run in results if run["arm"] == arm and run["cost"] in (0.0, COSTS[-1])]
        for axis, name in zip(axes, ("accuracy", "length"), strict=True):
            for number, run in enumerate(shown):
                steps, label = range(1, STEPS + 1), "" if number else words[arm]
                axis.plot(steps, run[name], color=colour, linestyle=dashes, linewidth=1.4, label=label)
    for axis, name in zip(axes, ("accuracy", "length"), strict=True):
        axis.set(xlabel=words["step"], ylabel=words[name], ylim=(0, None))
    axes[1].legend(frameon=False, loc="center right")
    fig.savefig(HERE / f"length{'' if lang == 'en' else '.zh-CN'}.png", dpi=DPI // 2, metadata={"Software": None})
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the commands, and run nothing")
    parser.add_argument("--figure", action="store_true", help="draw length.png and length.zh-CN.png as well")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    done = {(run["arm"], run["cost"], run["seed"]) for run in results}
    for number, run in enumerate(runs()):
        if args.only_print:
            for name, words in zip(("train", "evaluate"), commands(*run, f"outputs/{number}"), strict=True):
                print(f"grpo-lab {name} {shlex.join(words)}")
        elif run not in done:
            results.append(one_run(*run))
            write_atomically(RESULTS, "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")
    for lang in WORDS if args.figure and not args.only_print else ():
        draw(results, lang)


if __name__ == "__main__":
    main()
