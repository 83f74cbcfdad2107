"""The same completions for our own loop and for TRL's trainer: recorded from the first, and replayed by the second."""

import contextlib

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab.trainer import experience, train


@contextlib.contextmanager
def updates():
    """One dict for each update made inside: the gradients before it, in the order of the optimizer's parameters."""
    seen = []

    def before(optimizer, *_):
        ps = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append({"gradients": [p.grad.detach().clone() for p in ps]})

    hook = register_optimizer_step_pre_hook(before)
    try:
        yield seen
    finally:
        hook.remove()


def recorded(*run):
    """A run of our own loop; returns its history, its updates, and of each rollout prompts and completions as ids."""
    rollouts, sample = [], experience.sample_completions

    def record(*arguments, **settings):
        r = sample(*arguments, **settings)
        asked = [r.prompt_ids[p][r.prompt_mask[p]].tolist() for p in r.prompt_of_row]
        rollouts.append((asked, [ids[mask].tolist() for ids, mask in zip(r.completion_ids, r.mask, strict=True)]))
        return r

    with pytest.MonkeyPatch.context() as patch, updates() as seen:
        patch.setattr(experience, "sample_completions", record)
        return train(*run), seen, rollouts


def replayed(rollouts, *run):
    """The same run on TRL, with the same completions; its history and its updates."""
    from grpo_lab.train.engines import trl

    make, tokenizer = trl.make_trainer, run[1]

    def completions(prompts, trainer):
        asked, ids = rollouts[trainer.state.global_step // trainer.ours.updates_per_step]
        assert tokenizer.apply_chat_template(prompts, add_generation_prompt=True).input_ids == asked
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": [[0.0] * len(one) for one in ids]}

    def make_replaying(*arguments):
        trainer = make(*arguments)
        trainer.rollout_func = completions
        return trainer

    with pytest.MonkeyPatch.context() as patch, updates() as seen:
        patch.setattr(trl, "make_trainer", make_replaying)
        return trl.train(*run), seen
