"""Mutants of anchored lines that no test can kill, because nothing that can be seen depends on the change.

Each with the reason. `python -m tests.mutants --family equivalent` runs them: where one is killed, its reason is wrong.
"""

import re
from keyword import iskeyword

from tests.mutants.mutant import Mutant

# Functions whose inputs are not differentiated, so that stopping a gradient in them changes nothing.
NO_GRADIENT = {
    "completion_mask": "token ids are integers",
    "score_completions": "rewards are numbers that functions returned",
    "token_push": "the push is a gradient already, and not differentiated again",
    "token_weights": "the weight is a gradient already",
    "token_gate": "both pushes are gradients already",
    "ascending_pairs": "responses are integers",
    "sorting_reward": "prompts and responses are integers",
    "repaired_reward": "prompts and responses are integers",
    "exact_reward": "prompts and responses are integers",
    "stochastic_round": "the bits of a number have no gradient",
    "realised_share": "it steps by a given amount, not by a gradient",
    "sample_responses": "responses are integers",
    "exponential_race": "tokens are integers",
    "truncate_weights": "weights come without a gradient",
    "decoding_seconds": "lengths are integers",
    "answer_ages": "lengths are integers",
}

_SIGN_OF_A_COUNT = "the next line asks only whether the count is 0, so its sign does not matter"
_STOPPED_LATER = "the weight phi is stopped as a whole two lines below"
_TIMES_ZERO = "where the advantage is 0 it multiplies whatever was chosen, so the choice does not matter"
_VANISHED = "from log w = 7 on, exp(-lambda w) is 0 in float64, so any upper bound above that gives the weight 0"

EQUIVALENT: dict[str, str] = {
    "(1.9) ends_before = is_end - is_end.cumsum(-1)": _SIGN_OF_A_COUNT,
    "(1.9) ends_before = -(is_end.cumsum(-1) - is_end)": _SIGN_OF_A_COUNT,
    "(2.8) mean = from_least.sum((1, 2), keepdim=True) / count.clamp(min=2)": (
        "rewards are measured from one of them, so a group with a single step sums to 0, whatever divides it"
    ),
    "(4.8) penalised = (rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k1'), 0).sum(-1).detach())"
    ".detach()": "the charge is stopped already, and a reward comes from outside the policy",
    "(5.9) tau = torch.where(advantages >= 0, ratio.new_tensor(tau_pos), ratio.new_tensor(tau_neg))": _TIMES_ZERO,
    "(5.9) tau = torch.where(advantages > 0, ratio.new_tensor(tau_pos), ratio.new_tensor(tau_neg)).detach()": (
        "tau is a choice between two constants"
    ),
    "(5.11) log_w = log_ratio.sum(-1, keepdim=True).clamp(math.log(1e-08), 21)": _VANISHED,
    "(5.11) log_w = log_ratio.sum(-1, keepdim=True).clamp(math.log(1e-08), 19)": _VANISHED,
    "(5.11) log_w = log_ratio.sum(-1, keepdim=True).clamp(math.log(1e-08), 20).detach()": _STOPPED_LATER,
    "(5.12) k, lam = (torch.where(advantages > 0, positive[i], negative[i]) for i in (0, 1))": _TIMES_ZERO,
    "(10.1) difference = torch.where(mask, logp - sampler_logp, 0).detach()": "the weight is stopped in the end",
    "(6.8) reward = float(a is not None and same_number(a, given))": (
        "equality is symmetric, and what is no number is equal to nothing from either side"
    ),
}


def without_names(code: str) -> str:
    """The text with its variables numbered, which may be renamed; calls, attributes and keywords stay."""
    if "(" not in re.sub(r"^\(\d+\.\d+\) ", "", code):
        return code  # so short that others would look like it
    numbers: dict[str, str] = {}

    def numbered(name: re.Match) -> str:
        return name[0] if iskeyword(name[0]) else numbers.setdefault(name[0], f"v{len(numbers)}")

    return re.sub(r"(?<![\w.'])[a-zA-Z_]\w*(?![\w(']|=[^=])", numbered, code)


_REASONS = {without_names(entry): why for entry, why in EQUIVALENT.items()}


def reason(mutant: Mutant) -> str | None:
    """Why no test can kill the mutant, or None."""
    stops = mutant.name.endswith(".detach()")
    return _REASONS.get(without_names(mutant.name)) or (NO_GRADIENT.get(mutant.function) if stops else None)


def check(every: list[Mutant]) -> None:
    """Raise ValueError for an entry that fits none of the mutants of the anchored lines."""
    known = {without_names(mutant.name) for mutant in every} | {mutant.function for mutant in every}
    if stale := [entry for entry in EQUIVALENT if without_names(entry) not in known] + list(NO_GRADIENT.keys() - known):
        raise ValueError(f"equivalent.py has entries that fit no mutant: {stale}")
