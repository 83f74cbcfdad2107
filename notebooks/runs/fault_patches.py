"""Define the patches that plant a fault as a wrong line in the loop, for the runs in `faults_planted.py`.

Each function takes the engine and the model, and returns a patch that is in force within a `with` statement, or makes
such a function.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import torch
from fault_tasks import COMMON, TRL, even, has_seven, load_tiny, problems

from grpo_lab.config import GRPOConfig
from grpo_lab.kl import kl_estimate
from grpo_lab.models.adapters import frozen_copy
from grpo_lab.objective import microbatch_loss, token_mean
from grpo_lab.rewards import contains_reward
from grpo_lab.rollout.sample import sample_prompts
from grpo_lab.trainer import train

Patch = Callable[[str, object], contextlib.AbstractContextManager]


def no_patch(engine: str, model) -> contextlib.AbstractContextManager:
    """Change nothing."""
    return contextlib.nullcontext()


def patch_loss(change: Callable) -> Patch:
    """Return a patch of our loss that calls change(loss, logp, mask, num_items, settings) for the new loss."""

    def changed(logp, advantages, mask, rows, num_items, **settings):
        loss, metrics = microbatch_loss(logp, advantages, mask, rows, num_items, **settings)
        return change(loss, logp, mask, num_items, settings), metrics

    return patch("grpo_lab.trainer.loop.microbatch_loss", changed)


def patch_trl_loss(change_inputs: Callable = dict, change: Callable = lambda loss: loss):
    """Return a patch of TRL's loss that changes the inputs with `change_inputs`, and the loss with `change`."""
    from grpo_lab.train.trl.trainer import TrlTrainer

    original = TrlTrainer._compute_loss

    def changed(self, model, inputs):
        return change(original(self, model, change_inputs(inputs)))

    return patch.object(TrlTrainer, "_compute_loss", changed)


def patch_trl_trainer(change: Callable):
    """Return a patch that calls `change` with each new trainer of TRL."""
    from grpo_lab.train.trl import run

    original = run.make_trainer

    def make_changed_trainer(*args, **kwargs):
        trainer = original(*args, **kwargs)
        change(trainer)
        return trainer

    return patch.object(run, "make_trainer", make_changed_trainer)


def kl_sign(engine: str, model):
    """Reward divergence from the reference, the mistake `kl-sign`."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "beta", -trainer.beta))

    def change(loss, logp, mask, num_items, settings):
        kl = kl_estimate(logp, torch.where(mask, settings["ref_logp"], 0), settings["kl_estimator"])
        return loss - 2 * settings["beta"] * token_mean(torch.where(mask, kl, 0), mask, num_items)

    return patch_loss(change)


def untrained_reference(engine: str, model):
    """Make the base model the reference of a policy that was trained before."""
    base = copy.deepcopy(model)
    rows, config = problems("guess", "train", 99), GRPOConfig(**COMMON | {"max_steps": 12, "learning_rate": 5e-4})
    train(model, load_tiny()[1], rows, has_seven, config)
    return patch_reference(base, engine)


def trained_on_chat(engine: str, model):
    """Train the policy on the four questions before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 12, "max_completion_length": 40})
    train(model, load_tiny()[1], problems("chat", "train", 0), contains_reward, config)
    return contextlib.nullcontext()


def patch_reference(reference, engine: str):
    """Return a patch that makes another model the reference."""
    if engine == TRL:
        return patch_trl_trainer(
            lambda trainer: trainer.ref_model.to(reference.dtype).load_state_dict(reference.state_dict())
        )
    return patch("grpo_lab.trainer.run.run.frozen_copy", lambda _: frozen_copy(reference))


def scale_some_losses(factor: float, every: int) -> Patch:
    """Multiply the loss of every `every`-th update by a factor, such as NaN for the logarithm of 0 in a term."""

    def planted(engine: str, model):
        count = iter(range(1, 10**6))

        def change(loss, *_):
            return loss * factor if next(count) % every == 0 else loss

        return patch_trl_loss(change=change) if engine == TRL else patch_loss(change)

    return planted


def unfreeze_old_logp(engine: str, model):
    """Take the current policy for the old one in each update, so that every ratio is 1."""
    if engine == TRL:
        return patch_trl_loss(lambda inputs: inputs | {"old_per_token_logps": None})
    return patch("grpo_lab.trainer.loop.logprobs_without_gradient", lambda *_: None)


def reference_of_another_run(engine: str, model):
    """Make a policy of another run the reference."""
    stranger, tokenizer = load_tiny()
    config = GRPOConfig(**COMMON | {"max_steps": 10, "learning_rate": 5e-4})
    train(stranger, tokenizer, problems("guess", "train", 97), has_seven, config)
    return patch_reference(stranger, engine)


def policy_as_reference(engine: str, model):
    """Use the policy itself as the reference, without a copy."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "ref_model", trainer.model))
    return patch("grpo_lab.trainer.run.run.frozen_copy", lambda model: model)


def k1_for_k3(engine: str, model):
    """Compute the KL of the loss with k1, whatever the setting is."""
    return patch("grpo_lab.objective.loss.kl_estimate", lambda logp, ref_logp, _: kl_estimate(logp, ref_logp, "k1"))


def no_mean(engine: str, model):
    """Divide rewards by the standard deviation of their group, without subtracting the mean."""

    def raw(rewards, scale, eps=1e-4):
        return rewards / (rewards.std(-1, keepdim=True) + eps) if scale == "group" else rewards

    return patch("grpo_lab.advantages.estimators.group_advantages", raw)


def no_reference_precision(engine: str, model):
    """Make the float32 model the reference of a policy with the same weights rounded to bf16."""
    return patch_reference(load_tiny()[0], engine)


def patch_sampler(change: Callable):
    """Return a patch of our sampler that calls change(model, sampling) for the model and settings to sample with."""

    def changed(model, tokenizer, prompts, sampling):
        model, sampling = change(model, sampling)
        return sample_prompts(model, tokenizer, prompts, sampling)

    return patch("grpo_lab.rollout.environments.environment.sample_prompts", changed)


def stale_sampler(engine: str, model):
    """Let the sampler keep the weights of the first step."""
    first = copy.deepcopy(model)

    return patch_sampler(lambda model, sampling: (first, sampling))


def trained_on_even(engine: str, model):
    """Train the policy to answer with even numbers before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 25, "learning_rate": 5e-4})
    train(model, load_tiny()[1], problems("guess", "train", 98), even, config)
    return contextlib.nullcontext()


def sample_with(**settings) -> Patch:
    """Return a patch that passes settings to the sampler which the loss does not know."""

    return lambda engine, model: patch_sampler(lambda model, sampling: (model, replace(sampling, **settings)))
