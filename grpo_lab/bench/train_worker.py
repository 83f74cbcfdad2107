"""One training run, by our own loop or by TRL's GRPOTrainer as `--engine trl` has it.

What makes the two comparable is what the engine keeps alike (tests/engines): model, precision, problems in their order,
learning rate at each update, and the times of the steps. What each does inside a step is its own affair.
"""

import time
from itertools import accumulate

from grpo_lab.bench.process import peak_memory, worker_main
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings
from grpo_lab.engines.options import OWN, Engine
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS

HELD_OUT_PROBLEMS = 200  # at most


def engine_of(trainer: str) -> Engine:
    """What trains for "ours" and for "trl"."""
    return Engine(OWN if trainer == "ours" else trainer)


def measure(spec: dict) -> dict:
    """Train the tiny model on sums; the time and the reward of each step, and the memory."""
    task = TASKS["sums"]
    model, tokenizer = load_policy("tiny", device="cpu", precision="fp32")
    settings = default_settings(model.num_parameters(), task, "cpu")  # as `python -m grpo_lab.train` chooses them
    config = GRPOConfig(seed=spec["seed"], max_steps=spec["steps"], disable_tqdm=True, **settings)
    rows, right = task.rows("train", None, config.seed), find_rewards(task.reward_funcs[:1])[0]
    cpu_seconds, started = [], time.process_time()  # the processor's own: other work changes it little

    def note(step: int, metrics: dict) -> None:
        cpu_seconds.append(time.process_time() - started)

    steps = engine_of(spec["trainer"]).train(model, tokenizer, rows, right, config, callback=note)
    peak = peak_memory()
    counted = {"num_generations": 1, "max_completion_length": config.max_completion_length, "correct": right}
    found = evaluate(model, tokenizer, task.rows("test")[:HELD_OUT_PROBLEMS], **counted)
    history = {"seconds": list(accumulate(metrics["step_time"] for metrics in steps)), "cpu_seconds": cpu_seconds}
    history["reward"] = [metrics["reward"] for metrics in steps]
    return {"history": history, "held_out_accuracy": found["accuracy"], "peak_memory": peak}


if __name__ == "__main__":
    worker_main(measure)
