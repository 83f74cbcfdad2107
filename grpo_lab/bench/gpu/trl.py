"""Whole steps, here or with TRL's GRPOTrainer (without vLLM): the same model, prompts, group, lengths and rewards."""

import statistics

import torch

from grpo_lab.bench.gpu.shared import make_rows, make_tokenizer, parity_reward
from grpo_lab.bench.gpu.train import make_config
from grpo_lab.bench.process import worker_main
from grpo_lab.bench.train_worker import Watch, prepare_ours, prepare_trl
from grpo_lab.models.shapes import random_policy
from grpo_lab.precision import PRECISIONS


class ParityWatch(Watch):
    """Random weights answer nothing right; rewards that differ all the same keep every row in the update."""

    def reward(self, completions, prompts, completion_ids, **columns):
        rewards = parity_reward(completions, completion_ids)
        self.note(rewards, prompts, completion_ids)
        return rewards


def measure(spec: dict) -> dict:
    """Seconds of each step; the first prepares what is prepared once, so the median is over the others."""
    device = torch.device(spec["device"])
    model = random_policy(spec["shape"], device, PRECISIONS[spec["mode"]].weights)
    tokenizer = make_tokenizer(model.config.vocab_size)
    config = make_config(spec, max_steps=spec["steps"])
    rows = make_rows(config.prompts_per_step * spec["steps"], spec["prompt"], model.config.vocab_size)
    watch = ParityWatch()
    prepare = {"ours": prepare_ours, "trl": prepare_trl}[spec["trainer"]]
    go = prepare(model, tokenizer, rows, config, watch)
    watch.start()
    go()
    ends = watch.history["seconds"]
    steps = [end - start for start, end in zip([0.0, *ends], ends, strict=False)]
    return {
        "seconds_of_steps": steps,
        "seconds": statistics.median(steps[1:]),
        "tokens": watch.history["tokens"],
        "rows_of_steps": watch.history["rows"],
        "prompts": watch.history["prompts"],
        "peak_memory": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }


if __name__ == "__main__":
    worker_main(measure)
