"""Mutants that are no mistakes: nothing that an exercise asks for depends on the change. Each with the reason."""

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.proof.mutants import Mutant

_HALF = "the docstring promises nothing about half precision"
_EITHER_WAY = "the order does not matter"
_SIGN_OF_A_COUNT = "only whether the count is 0 is asked, so its sign does not matter"
_NO_GRADIENT = "nothing in this exercise is differentiated"

# By exercise: what stands behind "->" in the mutant's name, or its whole name; and why it changes nothing.
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
        "is_end = -torch.isin(completion_ids, ends).long()": _SIGN_OF_A_COUNT,
        "ends_before = is_end - is_end.cumsum(-1)": _SIGN_OF_A_COUNT,
        "ends_before = -(is_end.cumsum(-1) - is_end)": _SIGN_OF_A_COUNT,
    },
}


def of(exercise: Exercise) -> dict[str, str]:
    return EQUIVALENT.get(exercise.name, {})


def entry(exercise: Exercise, mutant: Mutant) -> str:
    """The entry that explains the mutant, or a reason that holds for all of its kind; "" if nothing does."""
    found = next((text for text in of(exercise) if text in (mutant.name, mutant.change)), "")
    if not found and not exercise.gradient_of and mutant.after.endswith(".detach()"):
        return _NO_GRADIENT
    return found
