"""Whole steps, here or with TRL's GRPOTrainer (without vLLM): the same model, prompts, group, lengths and rewards."""

import statistics

import torch

from grpo_lab.bench.gpu.shared import parity_reward
from grpo_lab.bench.gpu.train import make_run
from grpo_lab.bench.process import worker_main
from grpo_lab.bench.train_worker import engine_of


def measure(spec: dict) -> dict:
    """Seconds of each step; the first prepares what is prepared once, so the median is over the others."""
    model, tokenizer, rows, config = make_run(spec, torch.device(spec["device"]))
    history = engine_of(spec["trainer"]).train(model, tokenizer, rows, parity_reward, config)
    steps = [metrics["step_time"] for metrics in history]
    tokens = [metrics["num_tokens"] for metrics in history]
    return {"seconds_of_steps": steps, "seconds": statistics.median(steps[1:]), "tokens_so_far": tokens}


if __name__ == "__main__":
    worker_main(measure)
