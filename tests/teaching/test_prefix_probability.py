"""The probability of a prefix, against the plain product over tokens."""

import pytest
import torch

from grpo_lab.rollout import encode_prompts
from grpo_lab.tasks import addition_problems
from grpo_lab.teaching.prefix_probability import prefix_probability


def by_hand(model, tokenizer, row, text):
    """Probability of a text after the prompt, a forward pass a token; and the distribution after it."""
    ids, probability = encode_prompts(tokenizer, [row["prompt"]])[0], 1.0
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        with torch.no_grad():
            probability *= model(ids).logits[0, -1].softmax(-1)[token].item()
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
    with torch.no_grad():
        return probability, model(ids).logits[0, -1].softmax(-1)


def test_it_is_the_product_over_tokens(tiny):
    model, tokenizer = tiny
    row = addition_problems("test", 1, seed=1)[0]
    for beginning in ("<answer>", "<think>12+3="):
        of_prefix, right = prefix_probability(model, tokenizer, row, beginning, row["answer"])
        begins, then = by_hand(model, tokenizer, row, beginning)
        of_both, of_answer = by_hand(model, tokenizer, row, beginning + row["answer"])
        digits = [tokenizer(digit, add_special_tokens=False).input_ids[0] for digit in "0123456789"]
        by_tokens = of_both / begins / then[digits].sum().item() * (1 - of_answer[digits].sum().item())
        assert (of_prefix, right) == (pytest.approx(begins, rel=1e-4), pytest.approx(by_tokens, rel=1e-3))


def test_without_a_prefix_nothing_has_to_happen_and_a_number_is_made_of_digits(tiny):
    row = addition_problems("test", 1, seed=1)[0]
    of_prefix, right = prefix_probability(*tiny, row, "", row["answer"])
    assert of_prefix == 1.0 and 0 <= right <= 1
    with pytest.raises(ValueError, match="number is '-3'; expected digits"):
        prefix_probability(*tiny, row, "", "-3")
