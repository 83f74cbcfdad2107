"""Run by test_processes.py under torchrun: `on_processes.py FOLDER [--fsdp]` trains on the completions of FOLDER.

Each process writes what its optimizer saw: gradients before each update and, in full, the parameters after it.
"""

import os
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from grpo_lab.engines import trl
from grpo_lab.models import load_policy
from tests.engines.test_processes import CONFIG, FUNCTIONS, ROWS
from tests.support.worlds import make_config

folder, fsdp, rank = Path(sys.argv[1]), "--fsdp" in sys.argv, int(os.environ["RANK"])
config = make_config(**CONFIG, output_dir=str(folder / "out"))
rollouts = torch.load(folder / "rollouts.pt")
model, tokenizer = load_policy(folder / "base", precision="fp32")
names = [name for name, _ in model.named_parameters()]
make, seen = trl.make_trainer, []


def replay(prompts, trainer):
    """Of the recorded completions, those of this process's rows."""
    ids, mask, asked = rollouts[trainer.state.global_step // config.updates_per_step]
    assert len(prompts) == len(ids) // 2
    rows = range(rank * len(prompts), (rank + 1) * len(prompts))
    assert tokenizer.apply_chat_template(prompts, add_generation_prompt=True).input_ids == [asked[b] for b in rows]
    completions = [ids[b][mask[b]].tolist() for b in rows]
    return {
        "prompt_ids": [asked[b] for b in rows],
        "completion_ids": completions,
        "logprobs": [[0.0] * len(one) for one in completions],
    }


def make_replaying(*arguments):
    trainer = make(*arguments)
    trainer.rollout_func = replay
    assert (type(trainer.model).__name__ == "Qwen2ForCausalLM") and trainer.is_fsdp_enabled == fsdp
    return trainer


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


trl.make_trainer = make_replaying
register_optimizer_step_pre_hook(lambda o, *_: seen.append({"gradients": [whole(p.grad) for p in parameters(o)]}))
register_optimizer_step_post_hook(
    lambda o, *_: seen[-1].update(
        weights=[whole(p) for p in parameters(o)],
        held=sum(getattr(p, "_local_tensor", p).numel() for p in parameters(o)),
    )
)
history = trl.train(model, tokenizer, ROWS, FUNCTIONS, config, fsdp=fsdp)
torch.save({"updates": seen, "history": history, "names": names}, folder / f"rank{rank}.pt")
