"""Whole steps, here or with TRL's GRPOTrainer (without vLLM): the same model, prompts, group, lengths and rewards."""

import statistics
from itertools import pairwise

import torch

from grpo_lab.bench.gpu.shared import parity_reward
from grpo_lab.bench.gpu.train import make_run
from grpo_lab.bench.process import worker_main
from grpo_lab.bench.train_worker import Watch, prepare


def measure(spec: dict) -> dict:
    """Seconds of each step; the first prepares what is prepared once, so the median is over the others."""
    device = torch.device(spec["device"])
    watch = Watch(parity_reward)
    go = prepare(spec["trainer"], *make_run(spec, device), watch)
    watch.start()
    go()
    history = watch.history
    steps = [end - start for start, end in pairwise([0.0, *history["seconds"]])]
    return {
        "seconds_of_steps": steps,
        "seconds": statistics.median(steps[1:]),
        "tokens": history["tokens"],
        "rows_of_steps": history["rows"],
        "prompts": history["prompts"],
    }


if __name__ == "__main__":
    worker_main(measure)
