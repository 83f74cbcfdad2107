"""A plan that was fitted to memory keeps the rest of the plan."""

from dataclasses import replace

import torch

from grpo_lab import train as train_command


def test_plan_fitted_to_memory_keeps_the_tokenizer(checkpoint_name, tmp_path):
    arguments = ["--model", checkpoint_name, "--output_dir", str(tmp_path / "out"), "--num_generations", "2"]
    plan = train_command.make_plan(train_command.read_options(arguments))
    large_plan = replace(plan, num_parameters=10**9, device=torch.device("cpu"))
    fitted, lines = large_plan.fitted_to_memory()
    assert fitted is not large_plan and isinstance(lines, list)
    assert fitted.inputs.tokenizer is large_plan.inputs.tokenizer
