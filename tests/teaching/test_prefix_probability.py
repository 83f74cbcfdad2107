"""The probability of a prefix, compared with the plain product over tokens."""

import pytest
import torch

from grpo_lab.rollout import encode_prompts
from grpo_lab.tasks import addition_problems
from grpo_lab.teaching.prefix_probability import prefix_probability


def by_hand(model, tokenizer, row, text):
    """Return the probability of a text after the prompt, and the distribution of the next token.

    Each token has a separate forward pass.
    """
    ids, probability = encode_prompts(tokenizer, [row["prompt"]])[0], 1.0
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        with torch.no_grad():
            probability *= model(ids).logits[0, -1].softmax(-1)[token].item()
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
    with torch.no_grad():
        return probability, model(ids).logits[0, -1].softmax(-1)


def test_prefix_probability_is_the_product_over_tokens(tiny):
    model, tokenizer = tiny
    row = addition_problems("test", 1, seed=1)[0]
    for prefix in ("<answer>", "<think>12+3="):
        p_prefix, p_right = prefix_probability(model, tokenizer, row, prefix, row["answer"])
        p_by_hand, after_prefix = by_hand(model, tokenizer, row, prefix)
        p_both, after_number = by_hand(model, tokenizer, row, prefix + row["answer"])
        digits = [tokenizer(digit, add_special_tokens=False).input_ids[0] for digit in "0123456789"]
        p_number = p_both / p_by_hand / after_prefix[digits].sum().item() * (1 - after_number[digits].sum().item())
        assert (p_prefix, p_right) == (pytest.approx(p_by_hand, rel=1e-4), pytest.approx(p_number, rel=1e-3))


def test_without_a_prefix_nothing_has_to_happen_and_a_number_is_made_of_digits(tiny):
    row = addition_problems("test", 1, seed=1)[0]
    p_prefix, p_right = prefix_probability(*tiny, row, "", row["answer"])
    assert p_prefix == 1.0
    assert 0 <= p_right <= 1
    with pytest.raises(ValueError, match="number is '-3'; expected digits"):
        prefix_probability(*tiny, row, "", "-3")
