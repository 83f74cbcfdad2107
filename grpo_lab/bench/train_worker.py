"""One training run, by our own loop or by TRL's GRPOTrainer as `--engine trl` has it.

What makes the two comparable is what the engine keeps alike (tests/engines): model, precision, problems in their order,
learning rate at each update, and the times of the steps. What each does inside a step is its own affair.
"""

import time
from itertools import accumulate

import torch

from grpo_lab.bench.process import peak_memory, worker_main
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import FEW_PARAMETERS, default_settings
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS
from grpo_lab.train.engines.options import OURS, TRL, Engine

HELD_OUT_PROBLEMS = 200  # at most


def measure(spec: dict) -> dict:
    """Train the model on sums; the time and the reward of each step, and the memory.

    On a card a step ends when its numbers are there, and the memory is that of torch's tensors, not of the process.
    """
    on_card = spec["device"] == "cuda"
    model, tokenizer, config, rows, right = setting(spec)
    engine = Engine(OURS if spec["trainer"] == "ours" else TRL)
    cpu = [time.process_time()]  # the processor's own seconds: other work changes them little
    steps = engine.run(model, tokenizer, rows, right, config, callback=lambda *_: cpu.append(time.process_time()))
    peak = torch.cuda.max_memory_allocated() if on_card else peak_memory()
    counted = {"num_generations": 1, "max_completion_length": config.max_completion_length, "correct": right}
    found = evaluate(model, tokenizer, _task(model).rows("test")[:HELD_OUT_PROBLEMS], **counted)
    seconds, rewards = accumulate(step["step_time"] for step in steps), [step["reward"] for step in steps]
    cpu_seconds = [end - cpu[0] for end in cpu[1:]]
    history = {"seconds": list(seconds), "cpu_seconds": cpu_seconds, "reward": rewards}
    return {"history": history, "held_out_accuracy": found["accuracy"], "peak_memory": peak}


def setting(spec: dict) -> tuple:
    """Model, tokenizer, settings as `python -m grpo_lab.train` has them, problems, the reward for a right answer."""
    model, tokenizer = load_policy(spec["model"], device=spec["device"], precision=spec["precision"])
    task = _task(model)
    settings = default_settings(model.num_parameters(), task, spec["device"])
    settings |= {"seed": spec["seed"], "max_steps": spec["steps"], "precision": spec["precision"]}
    config = GRPOConfig(disable_tqdm=True, **settings)
    return model, tokenizer, config, task.rows("train", None, config.seed), find_rewards(task.reward_funcs[:1])[0]


def _task(model):
    return TASKS["sums" if model.num_parameters() < FEW_PARAMETERS else "short-sums"]


if __name__ == "__main__":
    worker_main(measure)
