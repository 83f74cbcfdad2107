"""Log-probabilities of models without a fast path, in chunks of logits that their own heads compute."""

import pytest
import torch

from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.rollout.forward.model_logprobs import ModelHead, compute_logprobs, has_separable_head
from grpo_lab.rollout.model import has_fast_path
from tests.support.architectures import ARCHITECTURES, make_architecture
from tests.support.logprob_inputs import logprob_inputs
from tests.support.peak import peak_of_live_tensors

PLAIN = ("gemma2", "granite", "cohere2", "gpt2", "mamba", "qwen2 (windows)", "olmo2", "falcon")
QUICK = ("gemma2", "granite", "gpt2")  # a cap, a scale, another family


def batch(T=7, vocabulary=24):
    return logprob_inputs((5, 2), (T, 2, 5), (0, 1, 1), vocabulary)


def values_and_gradients(model, inputs, **settings):
    """Return log-probabilities, entropies if there are any, and the gradients of a function of both."""
    outputs = compute_logprobs(model, *inputs, **settings)
    values = [output[inputs.mask] for output in outputs if output is not None]
    mixture = sum((torch.linspace(-1, 1, len(value)).to(value) * value).sum() for value in values)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return values, torch.autograd.grad(mixture, trained, materialize_grads=True)


def record_chunk_sizes(monkeypatch):
    """Return a list to which the number of tokens of each chunk is added."""
    sizes = []
    plain = ModelHead.logits

    def spy(head, hidden):
        sizes.append(hidden.shape[1])
        return plain(head, hidden)

    monkeypatch.setattr(ModelHead, "logits", spy)
    return sizes


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PLAIN])
@pytest.mark.parametrize("settings", [{"with_entropy": True, "temperature": 0.7}, {"with_entropy": False}], ids=str)
def test_chunks_equal_all_logits_at_once_with_gradients_in_float64(name, settings, monkeypatch):
    model, inputs = make_architecture(name)[0].double(), batch()
    assert not has_fast_path(model) and has_separable_head(model)
    expected = values_and_gradients(model, inputs, **settings)
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 4 * 24 * 4)  # chunks of 4 tokens
    sizes = record_chunk_sizes(monkeypatch)
    got = values_and_gradients(model, inputs, **settings)
    forward, backward = sizes[:4], sizes[4:]
    assert forward == [4, 4, 4, 2] and sorted(backward) == sorted(forward)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_tokens_that_the_policy_did_not_write_get_no_logits(monkeypatch):
    model, inputs = make_architecture("gemma2")[0], batch()
    policy_mask = inputs.mask.clone()
    policy_mask[:, 1:3] = False
    expected = compute_logprobs(model, *inputs)[0]
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 1)
    sizes = record_chunk_sizes(monkeypatch)
    got = compute_logprobs(model, *inputs, policy_mask=policy_mask)[0]
    assert sum(sizes) == int((policy_mask & inputs.mask).sum())
    torch.testing.assert_close(got, expected.where(policy_mask & inputs.mask, 0))


def test_the_memory_of_logits_does_not_grow_with_the_tokens(monkeypatch):
    """With four times the tokens, the logits of the additional tokens would take five times the bound."""
    model = make_architecture("gpt2", vocab_size=2**15)[0]
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 4 * 2**15)
    has_separable_head(model)

    def peak(T):
        inputs = batch(T, vocabulary=2**15)
        return peak_of_live_tensors(lambda: values_and_gradients(model, inputs))

    logits_bytes = 4 * 2**15 * 3 * 36  # bytes of the logits of the additional tokens
    assert peak(48) - peak(12) < 0.2 * logits_bytes


def test_a_model_whose_head_cannot_run_alone_makes_all_logits_with_one_warning(monkeypatch):
    """The forward pass of OPT calls a module inside its `base_model` instead of `base_model` itself."""
    model, inputs = make_architecture("opt")[0], batch()
    monkeypatch.setattr(model_logprobs, "_results_of_trials", {})
    expected = compute_logprobs(model, *inputs)[0]
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 1)
    with pytest.warns(UserWarning, match="OPTForCausalLM makes the logits of all tokens at once") as warned:
        got = [compute_logprobs(model, *inputs)[0] for _ in range(2)]
    assert torch.equal(got[0], expected) and torch.equal(got[1], expected)
    assert sum("OPTForCausalLM" in str(warning.message) for warning in warned) == 1
    assert "forward" not in vars(model.base_model)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_chunked_head_of_each_architecture_gives_its_own_logits(name, monkeypatch):
    model, inputs = make_architecture(name)[0], batch()
    if has_fast_path(model):
        pytest.skip("its logits are made on the fast path")
    if not has_separable_head(model):
        pytest.skip("its head cannot run alone")
    with torch.no_grad():
        expected = compute_logprobs(model, *inputs)[0]
        monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 1)
        got = compute_logprobs(model, *inputs)[0]
    torch.testing.assert_close(got[inputs.mask], expected[inputs.mask], rtol=0, atol=1e-5)
