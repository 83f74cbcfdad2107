"""A few steps of training under one setting of the levers, and where their time went."""

import statistics

from grpo_lab.bench.process import peak_memory, worker_main
from grpo_lab.bench.train_worker import our_config, settings_for
from grpo_lab.models import load_policy
from grpo_lab.rollout import static
from grpo_lab.tasks import TASKS
from grpo_lab.trainer import train

SEED = 0


def every_other(completions, **columns) -> list[float]:
    """1 for every other completion, whatever it says: no row goes without gradient, so the work is always the same."""
    return [float(place % 2) for place in range(len(completions))]


def measure(spec: dict) -> dict:
    """Seconds of the parts of a step and tokens that it drew, means over the steps; peak memory of the process."""
    if not spec["drop"]:
        static.STILL_WRITING = 0
    model, tokenizer = load_policy(spec["model"], device="cpu", precision=spec["precision"])
    settings = settings_for(model, spec) | {"cache_implementation": spec["cache_implementation"]}
    config = our_config(SEED, spec["steps"], **settings)
    rows = TASKS[spec["task"]].rows("train", None, SEED)[: config.max_steps * config.prompts_per_step]
    history = train(model, tokenizer, rows, every_other, config)
    names = {part: f"time/{part}" for part in ("rollout", "score", "update")} | {"step": "step_time"}
    means = {part: statistics.fmean(metrics[name] for metrics in history) for part, name in names.items()}
    tokens = config.generation_batch_size * statistics.fmean(metrics["completions/mean_length"] for metrics in history)
    return means | {"tokens": tokens, "peak_memory": peak_memory()}


if __name__ == "__main__":
    worker_main(measure)
