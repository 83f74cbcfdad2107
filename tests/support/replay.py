"""Record the completions of our own loop and replay them in TRL's trainer, so that both train on the same."""

import contextlib

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from grpo_lab.rollout.environments import environment
from grpo_lab.rollout.sample import sample_prompts
from grpo_lab.trainer import train


@contextlib.contextmanager
def record_updates():
    """Yield a list that gets a dict for each update made inside the context.

    The dict has "gradients" (before the update) and "weights" (after it), whole tensors in the optimizer's order, and
    "num_weights", the number of weights in this process.
    """
    made_updates = []

    def before(optimizer, *_):
        made_updates.append({"gradients": [_full_tensor(p.grad) for p in _parameters(optimizer)]})

    def after(optimizer, *_):
        parameters = _parameters(optimizer)
        num_weights = sum(getattr(p, "_local_tensor", p).numel() for p in parameters)
        made_updates[-1] |= {"weights": [_full_tensor(p) for p in parameters], "num_weights": num_weights}

    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        yield made_updates
    finally:
        for hook in hooks:
            hook.remove()


def _full_tensor(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def _parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def train_and_record(*run):
    """Run our own loop; return its history, its updates, and the token ids of each rollout (prompts, completions)."""
    rollouts = []

    def record(*arguments):
        rollout = sample_prompts(*arguments)
        prompts = [rollout.prompt_ids[p][rollout.prompt_mask[p]].tolist() for p in rollout.prompt_of_row]
        rows = zip(rollout.completion_ids, rollout.mask, strict=True)
        rollouts.append((prompts, [ids[mask].tolist() for ids, mask in rows]))
        return rollout

    with pytest.MonkeyPatch.context() as patch, record_updates() as made_updates:
        patch.setattr(environment, "sample_prompts", record)
        return train(*run), made_updates, rollouts


def replay_on_trl(rollouts, *run, **settings):
    """Repeat a run with TRL, each process with its own rows; return its history and its updates."""
    from grpo_lab.train.trl import run as trl_run

    make_trainer, tokenizer = trl_run.make_trainer, run[1]

    def recorded_completions(prompts, trainer):
        prompt_rows, ids = rollouts[trainer.state.global_step // trainer.run_config.updates_per_step]
        assert len(ids) == len(prompts) * trainer.accelerator.num_processes
        first = len(prompts) * trainer.accelerator.process_index
        prompt_rows, ids = (rows[first : first + len(prompts)] for rows in (prompt_rows, ids))
        assert tokenizer.apply_chat_template(prompts, add_generation_prompt=True).input_ids == prompt_rows
        return {"prompt_ids": prompt_rows, "completion_ids": ids, "logprobs": [[0.0] * len(row_ids) for row_ids in ids]}

    def make_replaying(*arguments):
        trainer = make_trainer(*arguments)
        trainer.rollout_func = recorded_completions
        return trainer

    with pytest.MonkeyPatch.context() as patch, record_updates() as made_updates:
        patch.setattr(trl_run, "make_trainer", make_replaying)
        return trl_run.train(*run, **settings), made_updates
