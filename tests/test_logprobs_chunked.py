"""The chunked head: the same values and gradients as the plain one, without the logits of the batch."""

import pytest
import torch

from grpo_lab.logprobs import chunked_logprobs_and_entropy, chunked_token_logprobs, token_entropy, token_logprobs
from tests.support.agreement import assert_agree, draw, draw_integers
from tests.support.kernels import KernelCounter
from tests.support.peak import peak_of_live_tensors


def inputs(B, T, V, D):
    """Return token ids, hidden states, and the weight of the head."""
    return draw_integers((B, T), V, 0), draw(B, T, D, seed=1), draw(V, D, seed=2)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_size", [1, 4, 7, 14, 15, 20])
def test_chunked_equals_plain(chunk_size, temperature):
    ids, hidden, weight = inputs(3, 5, 11, 4)
    assert_agree(
        lambda h, w: torch.stack(chunked_logprobs_and_entropy(h, w, ids, temperature, chunk_size)),
        lambda h, w: torch.stack([token_logprobs(h @ w.T, ids, temperature), token_entropy(h @ w.T, temperature)]),
        hidden,
        weight,
    )
    with pytest.raises(ValueError, match="chunk_size is 0"):
        chunked_token_logprobs(hidden, weight, ids, chunk_size=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_size", [1, 7, 20])
def test_chunked_without_entropy_equals_plain_with_fewer_kernels(chunk_size, temperature):
    ids, hidden, weight = inputs(3, 5, 11, 4)

    def logprobs_alone(h, w):
        return chunked_token_logprobs(h, w, ids, temperature, chunk_size)

    def logprobs_with_entropy(h, w):
        return chunked_logprobs_and_entropy(h, w, ids, temperature, chunk_size)[0]

    assert_agree(logprobs_alone, lambda h, w: token_logprobs(h @ w.T, ids, temperature), hidden, weight)
    counts = []
    for head in (logprobs_alone, logprobs_with_entropy):
        with KernelCounter() as kernels:
            head(hidden.requires_grad_(), weight.requires_grad_()).sum().backward()
        counts.append(kernels.count)
    chunks = -(-15 // chunk_size)
    assert counts[0] <= counts[1] - 5 * chunks, counts


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_chunked_gives_only_the_gradients_asked_for(frozen):
    ids, hidden, weight = inputs(2, 3, 5, 4)
    hidden.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "hidden")
    logp = chunked_token_logprobs(hidden, weight, ids, chunk_size=4)
    assert logp.requires_grad == (frozen != "both")
    if frozen != "both":
        logp.sum().backward()
        assert (hidden.grad is None) == (frozen == "hidden") and (weight.grad is None) == (frozen == "weight")


def bytes_per_row(head, V):
    """Return the bytes that one more row of 16 tokens adds to the peak of all tensors, forward and backward."""

    def peak(B):
        ids, hidden, weight = inputs(B, 16, V, 3)
        hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
        return peak_of_live_tensors(lambda: head(hidden, weight, ids).sum().backward())

    return (peak(64) - peak(32)) / 32


def test_chunked_takes_nothing_of_the_vocabulary_per_token():
    chunked, plain = (
        [bytes_per_row(head, V) for V in (101, 202)]
        for head in (
            lambda h, w, ids: chunked_token_logprobs(h, w, ids, chunk_size=8),
            lambda h, w, ids: token_logprobs(h @ w.T, ids),
        )
    )
    assert chunked[0] == chunked[1] < 16 * 101
    assert plain[1] - plain[0] >= 16 * 101 * 8, "the measure itself sees the logits of the plain head"


@pytest.mark.parametrize("chunk_size", [3, 64])
def test_chunks_under_autocast_have_the_gradient_of_half_precision_products(chunk_size):
    """The backward pass runs outside autocast, but has to compute in the precision of the forward pass."""
    ids, hidden, weight = inputs(2, 7, 40, 16)
    hidden, weight = hidden.float(), weight.float()
    outcomes = []
    for chunked in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logp = chunked_token_logprobs(h, w, ids, 0.7, chunk_size) if chunked else token_logprobs(h @ w.T, ids, 0.7)
        outcomes.append((logp, *torch.autograd.grad(logp.sin().sum(), (h, w))))
    exact = token_logprobs(hidden @ weight.T, ids, 0.7)
    for left, right in zip(*outcomes, strict=True):
        assert left.dtype == right.dtype == torch.float32
        torch.testing.assert_close(left, right, rtol=0.02, atol=0.03)
    assert (outcomes[0][0] - exact).abs().max() > 1e-3, "the products are in half precision"
    assert (outcomes[0][0] - outcomes[1][0]).abs().max() < 1e-5, "and the same ones, forward"
    share_equal = (outcomes[0][1] == outcomes[1][1]).float().mean()
    assert share_equal > 0.8, "and backward: the gradient of a row is rounded alike"
