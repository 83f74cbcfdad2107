"""Sampler and scorer agree, whatever prompt, padding and end; nothing shapes the sampling that was not asked for."""

import pytest
import torch
from transformers import GenerationConfig

from grpo_lab import rollout as rollout_module
from grpo_lab.rollout import encode_prompts, end_token_ids, pad_token_id, sample_completions, score_logprobs
from tests import oracles
from tests.worlds import END, PAD, ROWS, make_exact, make_tokenizer, make_world

# Ragged, one token long, and with the end token inside (the chat template puts it there).
PROMPTS = [row["prompt"] for row in ROWS] + ["d", "?" + END + "e" + END]
G, T = 5, 6


def sample(model, tokenizer, prompts=PROMPTS, seed=0, length=T, generations=G, **settings):
    torch.manual_seed(seed)
    return sample_completions(model, tokenizer, prompts, generations, length, **settings)


def score(model, rollout, **settings):
    row = torch.arange(len(rollout.mask)) // rollout.num_generations
    inputs = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask, row)
    return score_logprobs(model, *inputs, **settings)


def tokens_of(rollout, b):
    """Row b without any padding: prompt and completion."""
    p = b // rollout.num_generations
    prompt = rollout.prompt_ids[p, rollout.prompt_mask[p]].tolist()
    return prompt, rollout.completion_ids[b, rollout.mask[b]].tolist()


@torch.no_grad()
def next_logits(model, prefix):
    return model(torch.tensor([prefix]), use_cache=False).logits[0, -1]


# --- recorded and recomputed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad_is_end", [False, True])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_recorded_logprobs_are_the_recomputed_ones(temperature, pad_is_end):
    model, tokenizer = make_world(pad_is_end=pad_is_end)
    rollout = sample(model, tokenizer, temperature=temperature, generations=40)
    lengths = rollout.mask.sum(-1)
    assert (lengths == 1).any() and rollout.truncated.any() and ((lengths > 1) & ~rollout.truncated).any()
    assert len(set(rollout.prompt_mask.sum(-1).tolist())) > 2, "the prompts should be ragged"
    assert any(tokenizer.eos_token_id in tokens_of(rollout, b)[0] for b in range(len(lengths)))
    for share_prompts in (True, False):
        logp, entropy = score(model, rollout, temperature=temperature, share_prompts=share_prompts)
        assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4
        assert (entropy - rollout.entropy)[rollout.mask].abs().max() < 1e-4
        assert logp.isfinite().all() and entropy.isfinite().all()
    assert (rollout.logp[~rollout.mask] == 0).all() and (rollout.entropy[~rollout.mask] == 0).all()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_each_row_alone_without_padding_or_cache_gives_the_same(temperature):
    model, tokenizer = make_world(pad_is_end=True)
    rollout = sample(model, tokenizer, temperature=temperature, generations=2)
    for b in range(len(rollout.mask)):
        prompt, completion = tokens_of(rollout, b)
        logits = torch.stack([next_logits(model, prompt + completion[:t]) for t in range(len(completion))])
        want = oracles.token_logprobs(logits[None].double(), torch.tensor([completion]), temperature)[0]
        want_entropy = oracles.token_entropy(logits[None].double(), temperature)[0]
        assert (rollout.logp[b, : len(completion)] - want).abs().max() < 1e-4
        assert (rollout.entropy[b, : len(completion)] - want_entropy).abs().max() < 1e-4


def gradients(model, rollout, **settings):
    cotangent = torch.Generator().manual_seed(1)
    loss = 0
    for values in score(model, rollout, temperature=0.8, **settings):
        weight = torch.randn(values.shape, generator=cotangent, dtype=values.dtype)
        loss = loss + (values * weight * rollout.mask).sum()
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


def assert_same_gradients(one, other, tolerance):
    assert one[0] == pytest.approx(other[0], rel=tolerance)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_a_shared_prompt_changes_neither_values_nor_gradients():
    model, tokenizer = make_world()
    make_exact(model)
    rollout = sample(model, tokenizer, temperature=0.8)
    shared, plain = (gradients(model, rollout, share_prompts=share) for share in (True, False))
    assert_same_gradients(shared, plain, 1e-9)


def test_rows_may_be_scored_in_any_selection_and_order():
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer)
    rows = torch.tensor([29, 3, 3, 17, 0])
    inputs = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids[rows], rollout.mask[rows], rows // G)
    for share_prompts in (True, False):
        logp, _ = score_logprobs(model, *inputs, share_prompts=share_prompts)
        assert (logp - rollout.logp[rows])[rollout.mask[rows]].abs().max() < 1e-4


@pytest.mark.parametrize("prompts", [["a", "b"], ["a"], ["abc"]])
@pytest.mark.parametrize("length", [1, 3])
def test_the_shortest_prompts_and_completions(prompts, length):
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer, prompts, length=length)
    assert rollout.completion_ids.shape[1] <= length
    for share_prompts in (True, False):
        logp, _ = score(model, rollout, share_prompts=share_prompts)
        assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4


def test_large_logits_go_through_the_chunked_head_with_the_same_result(monkeypatch):
    model, tokenizer = make_world()
    make_exact(model)
    rollout = sample(model, tokenizer)
    calls = []
    chunked = rollout_module.chunked_logprobs_and_entropy

    def spy(*arguments):
        calls.append(arguments[-1])
        return chunked(*arguments)

    monkeypatch.setattr(rollout_module, "chunked_logprobs_and_entropy", spy)
    plain = gradients(model, rollout)
    assert not calls
    monkeypatch.setattr(rollout_module, "LOGITS_AT_ONCE", 4 * len(tokenizer) * 7)
    assert_same_gradients(gradients(model, rollout), plain, 1e-9)
    assert calls == [7], "seven tokens at a time are a quarter of the limit"


# --- what is recorded -----------------------------------------------------------------------------------------------


def test_the_first_end_token_belongs_to_the_completion_and_nothing_after_it():
    model, tokenizer = make_world(pad_is_end=True)
    rollout = sample(model, tokenizer, generations=12)
    ends = end_token_ids(model, tokenizer)
    for b in range(len(rollout.mask)):
        ids = rollout.completion_ids[b].tolist()
        first = next((t for t, token in enumerate(ids) if token in ends), None)
        kept = len(ids) if first is None else first + 1
        assert rollout.mask[b].tolist() == [t < kept for t in range(len(ids))]
        assert rollout.truncated[b].item() is (first is None)
        assert rollout.texts[b] == tokenizer.decode(ids[:first], skip_special_tokens=True)
    assert not rollout.logp.requires_grad


def test_every_end_token_of_the_checkpoint_ends_a_completion():
    model, tokenizer = make_world()
    assert end_token_ids(model, tokenizer) == sorted(tokenizer.convert_tokens_to_ids([END, PAD]))
    rollout = sample(model, tokenizer, generations=60)
    last = rollout.completion_ids.gather(1, rollout.mask.sum(-1, keepdim=True) - 1)[~rollout.truncated]
    assert set(last.flatten().tolist()) == set(end_token_ids(model, tokenizer))
    model.generation_config.eos_token_id = None
    assert end_token_ids(model, tokenizer) == [tokenizer.eos_token_id]


def test_ids_are_never_encoded_again(monkeypatch):
    model, tokenizer = make_world()
    encoded = []
    call = type(tokenizer).__call__
    monkeypatch.setattr(
        type(tokenizer), "__call__", lambda self, text, **more: encoded.append(text) or call(self, text, **more)
    )
    rollout = sample(model, tokenizer, ["a", "bc"], generations=40)
    score(model, rollout)
    assert encoded == ["a", "bc"]
    monkeypatch.undo()
    completions = [tokens_of(rollout, b)[1] for b in range(len(rollout.mask))]
    again = [tokenizer(text)["input_ids"] for text in rollout.texts]
    ends = end_token_ids(model, tokenizer)
    differ = sum(one != [i for i in ids if i not in ends] for one, ids in zip(again, completions, strict=True))
    assert differ > 0, "in this world, encoding the text again gives other tokens than were sampled"


# --- the checkpoint's settings, and ours ----------------------------------------------------------------------------

PLANTED = {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.8, "repetition_penalty": 1.1}


def test_the_settings_of_the_checkpoint_have_no_effect_and_are_put_back():
    model, tokenizer = make_world()
    neutral = sample(model, tokenizer)
    planted = GenerationConfig(
        **PLANTED, eos_token_id=end_token_ids(model, tokenizer), max_new_tokens=2, min_new_tokens=2, typical_p=0.5
    )
    model.generation_config = planted
    before = planted.to_dict()
    rollout = sample(model, tokenizer)
    assert torch.equal(rollout.completion_ids, neutral.completion_ids) and torch.equal(rollout.logp, neutral.logp)
    assert model.generation_config is planted and planted.to_dict() == before


def test_the_settings_are_put_back_when_sampling_fails(monkeypatch):
    model, tokenizer = make_world()
    planted = model.generation_config = GenerationConfig(**PLANTED)
    model.train()

    def broken(*arguments, **keywords):
        assert model.generation_config is not planted and not model.training
        raise RuntimeError("no luck")

    monkeypatch.setattr(model, "generate", broken)
    with pytest.raises(RuntimeError, match="no luck"):
        sample(model, tokenizer)
    assert model.generation_config is planted and model.training


def asked_for(logits, prefix, temperature, top_k, top_p, repetition_penalty):
    """The distribution that the settings describe, in literal steps; 0 for what they forbid."""
    logits = logits.double().tolist()
    for token in set(prefix):
        logits[token] = logits[token] / repetition_penalty if logits[token] > 0 else logits[token] * repetition_penalty
    logits = [x / temperature for x in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    top = max(logits)
    exponentials = torch.tensor([x - top for x in logits], dtype=torch.float64).exp()
    total, mass, kept = sum(exponentials[token] for token in order), 0.0, []
    for token in order:
        if mass < top_p:
            kept.append(token)
        mass += exponentials[token] / total
    chances = torch.zeros(len(logits), dtype=torch.float64)
    chances[kept] = exponentials[kept] / exponentials[kept].sum()
    return chances


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 4},
        {"top_p": 0.7},
        {"repetition_penalty": 1.8},
        {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_what_was_asked_for_is_recorded_as_the_distribution_sampled_from(settings):
    model, tokenizer = make_world(pad_is_end=True)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    rollout = sample(model, tokenizer, generations=3, **settings)
    for b in range(len(rollout.mask)):
        prompt, completion = tokens_of(rollout, b)
        for t, token in enumerate(completion):
            prefix = prompt + completion[:t]
            chances = asked_for(next_logits(model, prefix), prefix, **full)
            assert chances[token] > 0
            assert rollout.logp[b, t].item() == pytest.approx(chances[token].log().item(), abs=1e-4)
            kept = chances[chances > 0]
            assert rollout.entropy[b, t].item() == pytest.approx(-(kept * kept.log()).sum().item(), abs=1e-4)
    scored, _ = score(model, rollout, temperature=full["temperature"])
    assert (scored - rollout.logp)[rollout.mask].abs().max() > 1e-2, "such settings show as a difference"


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6, "top_k": 6}], ids=str)
def test_tokens_come_as_often_as_the_model_says(settings):
    model, tokenizer = make_world()
    n = 6000
    rollout = sample(model, tokenizer, ["ab+"], length=2, generations=n, **settings)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    first, prompt = rollout.completion_ids[:, 0], tokenizer("ab+")["input_ids"]
    assert_frequencies(first, asked_for(next_logits(model, prompt), [], **full))
    common = first[~torch.isin(first, torch.tensor(end_token_ids(model, tokenizer)))].mode().values.item()
    second = rollout.completion_ids[first == common, 1]
    assert_frequencies(second, asked_for(next_logits(model, [*prompt, common]), [], **full))


def assert_frequencies(drawn, chances):
    """Pearson's statistic, about the number of cells; eight standard deviations away would not be chance."""
    counts = drawn.bincount(minlength=len(chances)).double()
    assert (counts[chances == 0] == 0).all()
    expected = chances[chances > 0] * len(drawn)
    statistic, cells = ((counts[chances > 0] - expected) ** 2 / expected).sum().item(), len(expected)
    assert statistic < cells + 8 * (2 * cells) ** 0.5


# --- prompts --------------------------------------------------------------------------------------------------------


def test_messages_go_through_the_chat_template_and_strings_do_not():
    tokenizer = make_tokenizer()
    messages = [{"role": "user", "content": "1+1=?"}]
    ids, mask = encode_prompts(tokenizer, [messages, "1+1=?"])
    templated = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids[0]) == templated and mask[0].all()
    bare = tokenizer("1+1=?")["input_ids"]
    assert ids[1].tolist() == [pad_token_id(tokenizer)] * (ids.shape[1] - len(bare)) + bare
    assert mask[1].tolist() == [False] * (ids.shape[1] - len(bare)) + [True] * len(bare)


def test_rows_of_a_prompt_stand_together():
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer)
    assert rollout.num_generations == G and len(rollout.texts) == len(PROMPTS) * G
    assert rollout.prompt_ids.shape[0] == len(PROMPTS)


def test_padding_with_the_end_token_when_there_is_no_other():
    model, tokenizer = make_world()
    tokenizer.pad_token = None
    assert pad_token_id(tokenizer) == tokenizer.eos_token_id
    rollout = sample(model, tokenizer)
    logp, _ = score(model, rollout)
    assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_generations", 0),
        ("max_completion_length", 0),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("repetition_penalty", 0.0),
    ],
)
def test_a_wrong_setting_is_named(name, value):
    model, tokenizer = make_world()
    arguments = {"num_generations": 2, "max_completion_length": 3} | {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}; it has to be"):
        sample_completions(model, tokenizer, ["a"], **arguments)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts is empty"),
        ([""], "prompt is '', which has no token"),
        ([[]], "prompt is \\[\\]; allowed are"),
        ([5], "prompt is 5; allowed are a string"),
        ([["a"]], "allowed are a string and a non-empty list of messages"),
    ],
)
def test_a_wrong_prompt_is_named(prompts, message):
    model, tokenizer = make_world()
    with pytest.raises(ValueError, match=message):
        sample(model, tokenizer, prompts)


def test_what_cannot_be_sampled_or_scored_is_refused():
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer)
    tokenizer.eos_token = tokenizer.pad_token = None
    with pytest.raises(ValueError, match="tokenizer has no eos_token"):
        sample(model, tokenizer)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(len(tokenizer)))
    with pytest.raises(ValueError, match="model has a bias in its output embedding"):
        score(model, rollout)
