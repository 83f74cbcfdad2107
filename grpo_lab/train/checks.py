"""The checks of a run before its model is loaded, which a dry run makes too."""

import torch
from transformers import AutoModelForCausalLM

from grpo_lab.models.adapters import lora_config
from grpo_lab.train.plan import RunPlan
from grpo_lab.train.processes import is_main_process
from grpo_lab.trainer.run.folder import check_folder
from grpo_lab.trainer.run.inputs import RunCheck, checks_without_weights
from grpo_lab.trainer.run.trackers import check_trackers


def checks_of_plan(plan: RunPlan) -> list[RunCheck]:
    """Return the checks of a run in their order: those of its engine and its folder, its inputs, and its adapter."""
    checks = [
        RunCheck(
            "settings that this engine can train with",
            lambda: plan.engine.check(plan.config, plan.inputs.environment),
        ),
        RunCheck("output folder", lambda: check_output_folder(plan)),
        RunCheck("trackers are installed", lambda: check_tracker_packages(plan)),
        *checks_without_weights(plan.inputs),
    ]
    lora = plan.engine.lora
    if lora is not None:
        checks.append(RunCheck("layers for LoRA", lambda: check_adapter(plan, lora)))
    return checks


def check_output_folder(plan: RunPlan) -> None:
    """Raise FileExistsError or FileNotFoundError if the run may not use its folder, which only one process writes."""
    if is_main_process():
        check_folder(plan.config)


def check_tracker_packages(plan: RunPlan) -> None:
    """Raise InputPackageError for a tracker that is not installed; only one process reports to trackers."""
    if is_main_process():
        check_trackers(plan.config)


def check_adapter(plan: RunPlan, lora: dict) -> None:
    """Raise InputError if the model does not have the layers that LoRA is to adapt, without reading its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(plan.inputs.model.config)
    lora_config(model, lora)
