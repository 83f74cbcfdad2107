"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute.

The loop stands in `trainer/loop.py`: read it first. Then the modules and packages in this order; each imports from
those above it and from none below. `commands` serves them all: how a command reads its options and ends, arguments
checked with errors in one form, tables and sizes in one form, the reader's language.

Mathematics: plain tensors in, plain tensors out.
    policy_gradient   the gradient of an expected reward: by sampling, and exactly
    advantages        how much better a completion was than the others of its prompt
    logprobs          what a policy thought of the tokens that were sampled, and which of them count
    kl                the distance from a reference policy, and three estimators of it
    objective         from importance ratio to loss: GRPO and its relatives
    toys              sorting (notebook 03), worlds small enough to enumerate, sampler and trainer on many machines

Language models: what a step of training works with.
    config            the settings of a run, under TRL's names; five precisions of full-parameter training
    tasks             problems with known answers: sums, stories, chat, GSM8K, a file of your own
    rewards           what a completion earns: by rule, by mathematics, by a judge, and their weighted sum
    rollout           sample completions, and compute their log-probabilities again
    models            load a policy onto a device, saying what was chosen; the tiny model that ships

Training: the loop, what plans it, and its commands.
    trainer           sample, reward, compare, log-probabilities, step; save and resume
    memory            what a run takes of a device, known before it starts
    evaluate          how good a policy is on problems that it was not trained on
    train             a run from a shell: a task, rewards and a model of your own; the same run on TRL
    chat              talk to a policy

Instruments: what shows, checks and measures.
    formulas          the equations of docstrings beside the lines of code that compute them
    teaching          what only lessons use: how they begin, predictions, plots, planted bugs
    diagnose          what looks wrong in the log of a run, and what to try; what each metric means
    doctor            what works on this machine, and which command fixes the rest
    bench             speed and memory as ratios, against TRL

    course            exercises with checks, and what a teacher needs: assignments and marking

In a shell: `grpo-lab` lists the commands and says what each is for; `grpo-lab train` is `python -m grpo_lab.train`.
"""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.config import GRPOConfig
    from grpo_lab.trainer import train

__version__ = "0.4.0"


def _leave_out_torchao_notices() -> None:
    """Drop four warnings of torchao, which prints them when transformers imports it.

    They are about kernels for other cards (we use its optimizer, which has none of its own) and about enums that it
    registers twice. All other messages of these loggers are kept. It has to happen here, before any of our modules
    imports transformers.
    """
    for name, part in {"torchao": "Failed to load ", "torch.utils._pytree": " is an Enum subclass "}.items():
        logging.getLogger(name).addFilter(lambda record, part=part: part not in record.getMessage())


def __getattr__(name: str) -> Any:
    """`GRPOConfig`, when it is asked for: importing it takes a second. (`train` is the module, which can be called.)"""
    if name != "GRPOConfig":
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    from grpo_lab.config import GRPOConfig

    return GRPOConfig


_leave_out_torchao_notices()
