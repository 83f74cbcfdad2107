"""How hidden states become logits: scale, soft cap and bias, in one piece and in chunks."""

from types import SimpleNamespace

import pytest
import torch

from grpo_lab.logprobs import token_entropy, token_logprobs
from grpo_lab.rollout import score as scoring
from grpo_lab.rollout.forward import Head, chunked_head, head_of, layers_of, run_layers, takes
from tests.support.architectures import make_architecture
from tests.support.sampling import sample, score

B, T, D, V = 2, 7, 5, 11


def head(scale=1.0, soft_cap=None, bias=False):
    torch.manual_seed(0)
    return Head(torch.nn.Linear(D, V, bias=bias).double(), scale, soft_cap)


HEADS = [{}, {"scale": 0.25}, {"soft_cap": 0.7}, {"bias": True}, {"scale": 3.0, "soft_cap": 0.7, "bias": True}]


@pytest.mark.parametrize("settings", HEADS, ids=str)
def test_logits_are_the_literal_ones(settings):
    made, hidden = head(**settings), torch.randn(B, T, D, dtype=torch.float64)
    got = made.logits(hidden)
    bias = made.projection.bias
    for b, t, v in ((0, 0, 0), (1, 6, 10), (1, 3, 4)):
        x = sum(hidden[b, t, d] * made.weight[v, d] for d in range(D)) + (0 if bias is None else bias[v])
        x = x * made.scale
        x = x if made.soft_cap is None else made.soft_cap * torch.tanh(x / made.soft_cap)
        assert got[b, t, v].item() == pytest.approx(x.item(), abs=1e-12)
    assert made.is_linear is (settings in HEADS[:2])


@pytest.mark.parametrize("settings", HEADS, ids=str)
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks_change_neither_values_nor_gradients(settings, chunk):
    made = head(**settings)
    hidden = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    ids, weight = torch.randint(V, (B, T)), torch.randn(2, B, T, dtype=torch.float64)
    logits = made.logits(hidden)
    outcomes = []
    for logp, entropy in (
        (token_logprobs(logits, ids, 0.7), token_entropy(logits, 0.7)),
        chunked_head(made, hidden, ids, 0.7, chunk),
    ):
        loss = (logp * weight[0] + entropy * weight[1]).sum()
        gradients = torch.autograd.grad(loss, [hidden, *made.projection.parameters()])
        outcomes.append((logp, entropy, *gradients))
    for plain, chunked in zip(*outcomes, strict=True):
        torch.testing.assert_close(chunked, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["granite", "cohere", "hyperclovax", "falcon_h1", "gemma2", "phi", "qwen2"])
def test_large_logits_of_any_head_are_made_in_chunks_with_the_same_result(name, monkeypatch):
    model, tokenizer = make_architecture(name)
    rollout = sample(model, tokenizer, ["abc", "d+e?01"], length=6, generations=3)
    outcomes = []
    for at_once in (2**25, 4 * 24 * 5):
        monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", at_once)
        logp, entropy = score(model, rollout, temperature=0.7)
        gradients = torch.autograd.grad((logp * rollout.mask + 0.3 * entropy).sum(), list(model.parameters()))
        outcomes.append((logp, entropy, *gradients))
    for plain, chunked in zip(*outcomes, strict=True):
        torch.testing.assert_close(chunked, plain, rtol=1e-4, atol=1e-4)


def test_what_the_configurations_say_of_the_head():
    names = ("granite", "cohere", "hyperclovax", "gemma2", "phi")
    heads = {name: head_of(make_architecture(name)[0]) for name in names}
    assert {name: (made.scale, made.soft_cap) for name, made in heads.items()} == {
        "granite": (1 / 8, None),
        "cohere": (0.25, None),
        "hyperclovax": (0.25, None),
        "gemma2": (1.0, 2.0),
        "phi": (1.0, None),
    }
    assert [made.is_linear for made in heads.values()] == [True, True, True, False, False]


def test_a_model_without_a_head_is_refused():
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(model_type="qwen2"))
    model = SimpleNamespace(config=config, get_output_embeddings=lambda: None)
    with pytest.raises(ValueError, match="model is a SimpleNamespace without an output embedding; expected a language"):
        head_of(model)


def test_inputs_that_an_architecture_has_no_name_for_are_left_out():
    model, _ = make_architecture("mpt")
    ids = torch.arange(6)[None]
    layers = layers_of(model)
    assert takes(layers, "attention_mask") and not takes(layers, "position_ids")
    out = run_layers(model, ids, attention_mask=torch.ones_like(ids), position_ids=ids, use_cache=False)
    assert torch.equal(out.last_hidden_state, layers(ids, use_cache=False).last_hidden_state)
    llama4, _ = make_architecture("llama4_text")
    assert layers_of(llama4) is llama4.model, "which names itself as its base"
