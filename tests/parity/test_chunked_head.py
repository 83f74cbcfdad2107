"""`chunked_token_logprobs` against TRL's own chunked head: two implementations, one answer, in value and gradient."""

import pytest
import torch

from grpo_lab.logprobs import chunked_logprobs_and_entropy
from tests.parity.engines import engine
from tests.support.agreement import assert_agree, draw, numbers_of

head = engine("trl.kernels.chunked_logprob")


@pytest.fixture(scope="module", autouse=True)
def _what_its_backward_imports():
    engine("trl.trainer.utils")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("ours", "theirs"), [(1, 64), (5, 16), (1000, 7)])
def test_logprobs_and_entropy(ours, theirs, temperature):
    """In float32: TRL's head accumulates in nothing else. It cuts the vocabulary, ours cuts the tokens."""
    B, T, V, D = 3, 6, 50, 8
    hidden, weight = draw(B, T, D, seed=0).float(), draw(V, D, seed=1).float()
    ids = numbers_of((B, T), V, seed=2)

    def trl(h, w):
        out = head.ChunkedLogProbFunction.apply(h.reshape(-1, D), w, None, ids.reshape(-1), temperature, theirs)
        return torch.stack([x.view(B, T) for x in out[:2]])

    assert_agree(
        lambda h, w: torch.stack(chunked_logprobs_and_entropy(h, w, ids, temperature, ours)),
        trl,
        hidden,
        weight,
        tolerance=2e-5,
    )
