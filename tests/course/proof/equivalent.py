"""Mutants that are no mistakes: nothing that an exercise asks for depends on the change. Each with the reason."""

import re

from grpo_lab.course.exercise import Exercise
from grpo_lab.formulas import equations
from tests.course.proof.mutants import AnswerMutant
from tests.mutants.equivalent import EQUIVALENT as OF_LINES
from tests.mutants.equivalent import without_names

_HALF = "the docstring promises nothing about half precision"
_EITHER_WAY = "the order does not matter"
_ONE_DEVICE = "nobody asks an answer to run on a GPU, too"
_NO_GRADIENT = "nothing in this exercise is differentiated"
_SPREAD = "a standard deviation is the same from wherever it is measured"
_CANCELS = "what is added to all rewards of a group cancels where their mean is subtracted"
_WHOLE = "whole numbers and booleans have no gradient"
_WHOLE_NUMBERS = "that rewards may be whole numbers is no part of an exercise"
_NUMBERS = "only the ratio is differentiated, advantages are numbers"
_METRICS = "only the loss is checked, and not the metrics"
_UNDER_THE_MASK = "nothing is promised about NaN under the mask; `aggregate` keeps what is finite out of the loss"
_GROUP_ONLY = "in the exercise the advantage is 'group' throughout"
_TENSOR = "a tensor of one number will do for a number"
_PRINTED = "what is printed is not compared"
_LEARNS = "judged by what is learnt, and it learns all the same; `surrogate_loss` and `train_by_grpo` compare the loss"
_STRICT = "`strict` only raises, and no case asks for an error"

# By exercise: what stands behind "->" in the mutant's name, its whole name, or the function that is changed with a
# colon; and why it changes nothing.
EQUIVALENT: dict[str, dict[str, str]] = {
    "token_logprobs": {
        "z = logits / temperature": _HALF,
        "return logits": _HALF,
        "return logits.to(logits.dtype)": _HALF,
        "return torch.promote_types(torch.float32, dtype)": _EITHER_WAY,
    },
    "token_entropy": {
        "logp = (logits / temperature).log_softmax(-1)": _HALF,
        "return logits": _HALF,
        "return logits.to(logits.dtype)": _HALF,
        "return torch.promote_types(torch.float32, dtype)": _EITHER_WAY,
    },
    "completion_mask": {
        "ends = torch.tensor(eos_token_id, device=completion_ids.device)": "`isin` takes a single number, too",
        "is_end = -torch.isin(completion_ids, ends).long()": "a count of which only zero is asked",
    },
    "group_advantages": {
        "std = (rewards + rewards[0, 0]).std(correction=ddof)": _SPREAD,
        "std = rewards.std(correction=ddof)": _SPREAD,
        "std = (rewards[0, 0] - rewards).std(correction=ddof)": _SPREAD,
        "std = (rewards - rewards[1, 0]).std(correction=ddof)": _SPREAD,
        "std = (rewards - rewards[0, 1]).std(correction=ddof)": _SPREAD,
    },
    "rloo_advantages": {
        "r = rewards + rewards[:, :1]": _CANCELS,
        "r = rewards": _CANCELS,
    },
    "response_logprobs": {"numbers = rearrange(responses, 'S P G T -> S P T G').detach()": _WHOLE},
    "surrogate_loss": {"mask = torch.ones_like(logp, dtype=torch.bool).detach()": _WHOLE},
    "clipped_surrogate": {"advantages = per_token(advantages).detach()": _NUMBERS},
    "policy_loss": {
        "_mean:": _METRICS,
        "metrics = {'ratio': ratio.detach()}": _METRICS,
        "metrics = call(LOSSES[loss_type].clip_metrics, inputs)": _METRICS,
        "metrics = {'ratio': ratio} | call(LOSSES[loss_type].clip_metrics, inputs)": _METRICS,
        "metrics['kl'] = kl": _METRICS,
        "metrics['kl'] = -kl.detach()": _METRICS,
        "logp, old_logp = (logp, torch.where(mask, old_logp, 0))": _UNDER_THE_MASK,
        "logp, old_logp = (torch.where(mask, logp, 1), torch.where(mask, old_logp, 0))": _UNDER_THE_MASK,
        "logp, old_logp = (torch.where(mask, logp, 0), old_logp)": _UNDER_THE_MASK,
        "logp, old_logp = (torch.where(mask, logp, 0), torch.where(mask, old_logp, 1))": _UNDER_THE_MASK,
        "kl = kl_estimate(logp, ref_logp, kl_estimator)": _UNDER_THE_MASK,
        "inputs = checked_settings(LOSSES[loss_type], {'epsilon': epsilon, 'epsilon_high': high, 'delta': delta})": (
            "the other settings are those of the losses that the exercise leaves out"
        ),
        "kl = kl_estimate(logp, torch.where(mask, ref_logp, 1), kl_estimator)": _UNDER_THE_MASK,
        "old_logp = logp if old_logp is None else old_logp": "`importance_ratio` stops its gradient",
    },
    "learn_by_grpo": {
        "ratio = (logp - old_logp).expm1()": _LEARNS,
        "ratio = logp - old_logp": _LEARNS,
        "ratio = logp.exp()": _LEARNS,
        "gain = torch.max(ratio * A, ratio.clamp(1 - epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio, ratio.clamp(1 - epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(A, ratio.clamp(1 - epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 1 + epsilon))": _LEARNS,
        "gain = torch.min(ratio * A, A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1 + epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(epsilon - 1, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(2 - epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(0 - epsilon, 1 + epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 1 - epsilon) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 1) * A)": _LEARNS,
        "gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 2 + epsilon) * A)": _LEARNS,
        "(-gain).sum().backward()": _LEARNS,
    },
    "first_step_test": {
        "moved = sum(((p.detach().cpu() - before[name]).abs().sum() for name, p in kept.items()))": _TENSOR,
        "moved = sum(((before[name] - p.detach().cpu()).abs().sum().item() for name, p in kept.items()))": (
            "an absolute value forgets the sign"
        ),
        "f'step 1: a weight moved by {m:.3f} learning rates (expected: about 1)'": _PRINTED,
        "first_step_test: print(f'step 1: a weight moved by {m:.3f} learning rates (expected: about 1)') -> nothing": (
            _PRINTED
        ),
    },
    "answer_ages": {
        "free, begins = ([1] * slots, [])": "all begin one token later, and nothing else changes",
        "for length in lengths:": _TENSOR,
    },
    "stochastic_round": {
        "return rounded.bfloat16()": "infinities, and NaN as arithmetic makes it, come out of these lines as they are",
    },
    "read_sequences": {
        "rows = zip(completion_ids, mask.cpu(), strict=True)": "a mask on the CPU picks from a tensor on any device",
    },
    "compute_advantages": {
        "if not rewards.any():": "where nothing is NaN, leaving nothing out comes to the same",
        "compute_advantages: if not rewards.isnan().any(): -> nothing": (
            "where nothing is NaN, leaving nothing out comes to the same"
        ),
        "if config.scale_rewards == 'batch':": _GROUP_ONLY,
        "advantages = -torch.zeros_like(by_group)": "minus 0 is 0",
        "if scored.sum() > 1:": _GROUP_ONLY,
        "if scored.sum() > 1 or config.advantage == 'none':": _GROUP_ONLY,
        "if scored.sum() > 1 or (scored.all() and config.advantage == 'none'):": _GROUP_ONLY,
    },
    "learn_to_stop": {
        "starts = -torch.zeros_like(completion_ids[:, :1])": "minus 0 is 0",
        "policy = table.requires_grad_()": "whether the table given takes gradients afterwards is not compared",
        "gains = torch.where(mask, advantages[:, None] * logp, 1)": (
            "a constant outside of the mask has no gradient, and only the gradient is used"
        ),
    },
    "stay_near_reference": {"reference = logits": "the policy is a copy already, so nothing moves the logits given"},
    "many_small_steps": {"loss = (targets - predicted).square().mean()": "a square forgets the sign"},
}


def of(exercise: Exercise) -> dict[str, str]:
    return EQUIVALENT.get(exercise.name, {})


def entry(exercise: Exercise, mutant: AnswerMutant) -> str:
    """The entry that explains the mutant, or a reason that holds for all of its kind; "" if nothing does."""
    made = {without_names(text) for text in (mutant.name, mutant.change)} | {f"{mutant.function}:"}
    found = next((text for text in of(exercise) if text in made or without_names(text) in made), "")
    lines = {without_names(f"({equation.tag}) {mutant.change}") for equation in equations(exercise.function)}
    found = found or next((reason for text, reason in OF_LINES.items() if without_names(text) in lines), "")
    detached = mutant.after.endswith(".detach()") or mutant.before.replace(".detach()", "") == mutant.after
    if not found and not exercise.gradient_of and detached:
        return _NO_GRADIENT
    if not found and "torch.result_type(" in mutant.before:
        return _WHOLE_NUMBERS
    if not found and re.sub(", strict=False", "", mutant.after) == re.sub(", strict=True", "", mutant.before):
        return _STRICT
    if not found and re.sub(r", device=[\w.]+|\.cpu\(\)", "", mutant.before) == re.sub(r"\.cpu\(\)", "", mutant.after):
        return _ONE_DEVICE
    return found
