"""On a GPU, the chunked head has the values and gradients of the plain head, in float32 and in bf16."""

import pytest
import torch

from grpo_lab.logprobs import chunked_logprobs_and_entropy, token_entropy, token_logprobs

pytestmark = pytest.mark.gpu


def values_and_gradients(inputs, ids, chunk_size=None):
    """Return log-probabilities, entropies, and the gradients of a weighted sum of both."""
    hidden, weight = (x.detach().clone().requires_grad_() for x in inputs)
    if chunk_size is None:
        logits = hidden @ weight.T
        logp, entropy = token_logprobs(logits, ids), token_entropy(logits)
    else:
        logp, entropy = chunked_logprobs_and_entropy(hidden, weight, ids, chunk_size=chunk_size)
    mixture = torch.linspace(-1, 1, logp.numel(), device="cuda").view_as(logp)
    gradients = torch.autograd.grad((mixture * logp).sum() + 0.1 * entropy.sum(), (hidden, weight))
    return [x.detach().double() for x in (logp, entropy, *gradients)]


def relative_distances(tensors, references):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(tensors, references, strict=True)]


@pytest.mark.parametrize("chunk_size", [7, 64, 448])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunked_head_is_as_exact_as_the_plain_head(dtype, chunk_size):
    """Both are compared with float64 on the same numbers; in bf16 the chunked head may not round more."""
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(2, 100, 192, generator=generator, device="cuda").to(dtype)
    weight = (0.1 * torch.randn(4096, 192, generator=generator, device="cuda")).to(dtype)
    ids = torch.randint(4096, (2, 100), generator=generator, device="cuda")
    exact = values_and_gradients((hidden.double(), weight.double()), ids)
    plain = relative_distances(values_and_gradients((hidden, weight), ids), exact)
    chunked = relative_distances(values_and_gradients((hidden, weight), ids, chunk_size), exact)
    floor = 1e-5 if dtype == torch.float32 else 1e-3
    for chunked_error, plain_error in zip(chunked, plain, strict=True):
        assert chunked_error < max(1.5 * plain_error, floor), (chunked, plain)
        assert chunked_error < (1e-4 if dtype == torch.float32 else 2e-2)
