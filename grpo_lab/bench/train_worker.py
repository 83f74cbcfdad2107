"""One training run, here or with TRL's GRPOTrainer, under the same settings and watched in the same way.

What makes the two comparable: the same model file in the same precision; the same problems in the same order; the same
learning rate at each update; and one clock, a reward function that both call once a step with all completions. What
each does inside a step, TRL's fused optimizer and tiled log-prob head included, is its own affair.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from grpo_lab.bench.process import peak_memory, worker_main
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.precision import precision_of
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS
from grpo_lab.trainer import train

HELD_OUT_PROBLEMS = 200  # at most


def our_config(seed: int, steps: int, **settings) -> GRPOConfig:
    """A run with these settings, with no file written and no bar shown."""
    return GRPOConfig(seed=seed, max_steps=steps, save_steps=0, disable_tqdm=True, **settings)


class Watch:
    """Records the time, the reward and the tokens of each step of a run."""

    def __init__(self, reward_func: Callable[..., list] = accuracy_reward):
        self.reward_func = reward_func
        names = ("seconds", "cpu_seconds", "reward", "tokens", "rows", "prompts")
        self.history: dict[str, list] = {name: [] for name in names}

    def start(self) -> None:
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def step_ended(self) -> None:
        """Note the time since the start: the wall clock's, and the processor's own, which other work changes little."""
        self.history["seconds"].append(time.perf_counter() - self._started)
        self.history["cpu_seconds"].append(time.process_time() - self._cpu_started)

    def reward(self, completions, prompts, completion_ids, **columns):
        rewards = self.reward_func(completions, completion_ids=completion_ids, **columns)
        note = {"reward": sum(rewards) / len(rewards), "tokens": sum(map(len, completion_ids)), "rows": len(rewards)}
        note["prompts"] = hashlib.sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()[:16]
        for name, value in note.items():
            self.history[name].append(value)
        return rewards


def prepare(trainer: str, model, tokenizer, rows: list[dict], config: GRPOConfig, watch: Watch) -> Callable:
    """The training by "ours" or by "trl", ready to begin."""
    if trainer == "trl":
        return trl_trainer(model, tokenizer, rows, config, watch).train
    return partial(train, model, tokenizer, rows, watch.reward, config, lambda step, metrics: watch.step_ended())


def trl_trainer(model, tokenizer, rows: list[dict], config: GRPOConfig, watch: Watch):
    """TRL's GRPOTrainer as `--engine trl` has it, ready to begin."""
    from grpo_lab.engines import trl

    config = replace(config, precision=precision_of(model, config).name, bf16=False, fp16=False)
    steps = trl.Steps(config, callback=lambda step, metrics: watch.step_ended())
    ordered = trl.rows_in_order(model, tokenizer, rows, watch.reward, config)
    return trl.make_trainer(model, tokenizer, ordered, watch.reward, config, steps)


def measure(spec: dict) -> dict:
    """Train the tiny model on sums; what happened at each step, and the memory. The clock runs in training only."""
    task = TASKS["sums"]
    model, tokenizer = load_policy("tiny", device="cpu", precision="fp32")
    settings = default_settings(model.num_parameters(), task, "cpu")  # as `python -m grpo_lab.train` chooses them
    config = our_config(spec["seed"], spec["steps"], **settings)
    rows = task.rows("train", None, config.seed)
    right = find_rewards(task.reward_funcs[:1])[0]
    watch = Watch(right)
    go = prepare(spec["trainer"], model, tokenizer, rows, config, watch)
    watch.start()
    go()
    peak = peak_memory()
    held_out = task.rows("test")[:HELD_OUT_PROBLEMS]
    counted = {"num_generations": 1, "max_completion_length": config.max_completion_length, "correct": right}
    # TRL leaves the model wrapped: whatever its forward returns becomes float32, and a cache of ours is no tensor.
    accuracy = evaluate(model, tokenizer, held_out, cache_implementation="dynamic", **counted)["accuracy"]
    return {"history": watch.history, "held_out_accuracy": accuracy, "peak_memory": peak}


if __name__ == "__main__":
    worker_main(measure)
