"""The probability of a prefix of a completion, and the probability that the right number follows the prefix.

Both are computed from logits, without sampling. The tiny model decides with one token whether it thinks
(`evaluate.thinking_probability`). For a model that writes English, the prefix has several tokens: asked for the number
17, it may write out the sum first, "8 + 9 = 17".
"""

import torch
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.config.precision import autocast
from grpo_lab.rollout import encode_prompts, evaluation_mode


@torch.no_grad()
def prefix_probability(model, tokenizer, row: dict, prefix: str, number: str) -> tuple[float, float]:
    """Compute the probability of a prefix of a completion, and the probability that the right number follows it.

    Args:
        model: A causal language model of transformers.
        tokenizer: The tokenizer of the model.
        row: A problem with the key "prompt".
        prefix: The prefix, such as "8 + 9 = "; "" for no prefix.
        number: The right number, such as "17".

    Returns:
        P(prefix); and, given that the prefix and then a digit were written, the probability that the number at
        that place is `number`, with no further digit after it.

    Raises:
        ValueError: if `number` does not consist of digits.
    """
    if not number.isdigit():
        raise InputError("number", number, "expected digits")
    prompt, mask = encode_prompts(tokenizer, [row["prompt"]])
    prefix_ids, number_ids = _token_ids(tokenizer, prefix), _token_ids(tokenizer, number)
    ids = torch.cat([prompt[0], prefix_ids, number_ids])[None].to(model.device)
    mask = torch.cat([mask, mask.new_ones(1, len(prefix_ids) + len(number_ids))], dim=1).to(model.device)
    with evaluation_mode(model), autocast(model):
        logits = model(ids, attention_mask=mask.long()).logits[0, prompt.shape[1] - 1 :]
    # One row for each token after the prompt, and one for the token that follows them.
    probabilities = logits.float().softmax(-1).cpu()
    ids_of_digits = torch.tensor(sorted({i for digit in "0123456789" for i in _token_ids(tokenizer, digit).tolist()}))
    token_probabilities = probabilities[:-1].gather(1, torch.cat([prefix_ids, number_ids])[:, None])[:, 0]
    p_prefix = token_probabilities[: len(prefix_ids)].prod()
    p_number = token_probabilities[len(prefix_ids) :].prod()
    p_any_digit = probabilities[len(prefix_ids), ids_of_digits].sum()
    p_no_further_digit = 1 - probabilities[-1, ids_of_digits].sum()
    return p_prefix.item(), (p_number / p_any_digit * p_no_further_digit).item()


def _token_ids(tokenizer, text: str) -> Tensor:
    """Return the token ids of a text, without special tokens."""
    return torch.tensor(tokenizer(text, add_special_tokens=False).input_ids, dtype=torch.long)
