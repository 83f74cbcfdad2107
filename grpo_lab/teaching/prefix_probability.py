"""The probability that a completion begins in a certain way, and whether that pays: read from logits, not sampled.

The tiny model decides with one token whether it thinks, `evaluate.thinking_probability`. A model that speaks English
begins with several tokens, such as writing a sum out before its result: "8 + 9 = 17" where "17" was asked for.
"""

import torch
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.config.precision import autocast
from grpo_lab.rollout import encode_prompts, evaluating


@torch.no_grad()
def prefix_probability(model, tokenizer, row: dict, beginning: str, number: str) -> tuple[float, float]:
    """The probability that a completion begins in this way, and that the number which follows is the right one.

    Args:
        row: a problem with "prompt".
        beginning: the prefix, such as "8 + 9 = "; "" for none.
        number: the right number, such as "17".

    Returns:
        P(beginning), and P(the number is `number`, and no further digit | beginning, and then a digit).

    Raises:
        ValueError: if number is not made of digits.
    """
    if not number.isdigit():
        raise InputError("number", number, "expected digits")
    prompt, mask = encode_prompts(tokenizer, [row["prompt"]])
    begins, digits = _ids(tokenizer, beginning), _ids(tokenizer, number)
    ids = torch.cat([prompt[0], begins, digits])[None].to(model.device)
    mask = torch.cat([mask, mask.new_ones(1, len(begins) + len(digits))], dim=1).to(model.device)
    with evaluating(model), autocast(model):
        logits = model(ids, attention_mask=mask.long()).logits[0, prompt.shape[1] - 1 :]
    probabilities = logits.float().softmax(-1).cpu()  # those of each token after the prompt, and of one more
    is_digit = torch.tensor(sorted({i for digit in "0123456789" for i in _ids(tokenizer, digit).tolist()}))
    chosen = probabilities[:-1].gather(1, torch.cat([begins, digits])[:, None])[:, 0]
    a_digit = probabilities[len(begins), is_digit].sum()
    right = chosen[len(begins) :].prod() / a_digit * (1 - probabilities[-1, is_digit].sum())
    return chosen[: len(begins)].prod().item(), right.item()


def _ids(tokenizer, text: str) -> Tensor:
    return torch.tensor(tokenizer(text, add_special_tokens=False).input_ids, dtype=torch.long)
