"""Only settings of the caller change the distribution, and they are recorded; prompts reach the model complete."""

import pytest
import torch
from transformers import GenerationConfig

from grpo_lab.rollout import encode_prompts, end_token_ids, pad_token_id, sample_completions
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompting import prompt_checks
from grpo_lab.rollout.prompting.prompt_checks import check_prompts
from grpo_lab.rollout.prompting.prompts import longest_prompt
from tests.support.sampling import SETTINGS, logprobs_of, next_logits, sample, tokens_of
from tests.support.small_policy import make_policy, make_tokenizer
from tests.support.tool_policy import add, make_tool_policy

SAID = {"role": "user", "content": "a"}

# --- the checkpoint's settings, and ours ----------------------------------------------------------------------------

PLANTED = {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.8, "repetition_penalty": 1.1}


@pytest.mark.parametrize("cache", ["dynamic", None])
def test_the_settings_of_the_checkpoint_have_no_effect_and_are_put_back(cache):
    model, tokenizer = make_policy()
    neutral = sample(model, tokenizer, cache_implementation=cache)
    planted = GenerationConfig(
        **PLANTED, eos_token_id=end_token_ids(model, tokenizer), max_new_tokens=2, min_new_tokens=2, typical_p=0.5
    )
    model.generation_config = planted
    config = planted.to_dict()
    rollout = sample(model, tokenizer, cache_implementation=cache)
    assert torch.equal(rollout.completion_ids, neutral.completion_ids) and torch.equal(rollout.logp, neutral.logp)
    assert model.generation_config is planted and planted.to_dict() == config


def asked_for(logits, prefix, temperature, top_k, top_p, repetition_penalty):
    """The distribution that the settings define, computed step by step; 0 at excluded tokens."""
    logits = logits.double().tolist()
    for token in set(prefix):
        logits[token] = logits[token] / repetition_penalty if logits[token] > 0 else logits[token] * repetition_penalty
    logits = [x / temperature for x in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    top = max(logits)
    exponentials = torch.tensor([x - top for x in logits], dtype=torch.float64).exp()
    total, mass, nucleus = sum(exponentials[token] for token in order), 0.0, []
    for token in order:
        if mass < top_p:
            nucleus.append(token)
        mass += exponentials[token] / total
    chances = torch.zeros(len(logits), dtype=torch.float64)
    chances[nucleus] = exponentials[nucleus] / exponentials[nucleus].sum()
    return chances


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_recorded_logprobs_are_those_of_the_sampling_settings(settings):
    """The expected values come from one forward pass for each row, without padding and cache."""
    model, tokenizer = make_policy(pad_is_end=True)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    rollout = sample(model, tokenizer, generations=3, **settings)
    for b in range(len(rollout.mask)):
        prompt, completion = tokens_of(rollout, b)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0, len(prompt) - 1 :]
        for t, token in enumerate(completion):
            chances = asked_for(logits[t], prompt + completion[:t], **full)
            assert chances[token] > 0
            assert rollout.logp[b, t].item() == pytest.approx(chances[token].log().item(), abs=1e-4)
            positive = chances[chances > 0]
            assert rollout.entropy[b, t].item() == pytest.approx(-(positive * positive.log()).sum().item(), abs=1e-4)
    logp, _ = logprobs_of(model, rollout, temperature=full["temperature"])
    difference = (logp - rollout.logp)[rollout.mask].abs().max()
    assert difference < 1e-4 if settings.keys() <= {"temperature"} else difference > 1e-2, "others show"


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6, "top_k": 6}, {"cache_implementation": "dynamic"}], ids=str
)
def test_sampled_token_frequencies_are_the_models_probabilities(settings):
    model, tokenizer = make_policy()
    n = 6000
    rollout = sample(model, tokenizer, ["ab+"], length=2, generations=n, **settings)
    settings = {name: value for name, value in settings.items() if name != "cache_implementation"}
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    first, prompt = rollout.completion_ids[:, 0], tokenizer("ab+")["input_ids"]
    assert_frequencies(first, asked_for(next_logits(model, prompt), [], **full))
    common = first[~torch.isin(first, torch.tensor(end_token_ids(model, tokenizer)))].mode().values.item()
    second = rollout.completion_ids[first == common, 1]
    assert_frequencies(second, asked_for(next_logits(model, [*prompt, common]), [], **full))


def assert_frequencies(samples, chances):
    """Pearson's statistic is about the number of cells. Eight standard deviations more would not be chance."""
    counts = samples.bincount(minlength=len(chances)).double()
    assert (counts[chances == 0] == 0).all()
    expected = chances[chances > 0] * len(samples)
    statistic, cells = ((counts[chances > 0] - expected) ** 2 / expected).sum().item(), len(expected)
    assert statistic < cells + 8 * (2 * cells) ** 0.5


def test_messages_go_through_the_chat_template_and_strings_do_not():
    tokenizer = make_tokenizer()
    messages = [{"role": "user", "content": "1+1=?"}]
    ids, mask = encode_prompts(tokenizer, [messages, "1+1=?"])
    templated = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids[0]) == templated and mask[0].all()
    bare = tokenizer("1+1=?")["input_ids"]
    assert ids[1].tolist() == [pad_token_id(tokenizer)] * (ids.shape[1] - len(bare)) + bare
    assert mask[1].tolist() == [False] * (ids.shape[1] - len(bare)) + [True] * len(bare)


def test_the_longest_prompt_is_the_longest_of_the_first_ones(monkeypatch):
    tokenizer = make_tokenizer()
    rows = [{"prompt": "1+"}, {"prompt": "1+1=?"}, {"prompt": "1+1+1+1=?"}]
    assert longest_prompt(tokenizer, rows) == encode_prompts(tokenizer, ["1+1+1+1=?"]).ids.shape[1]
    monkeypatch.setattr("grpo_lab.rollout.prompting.prompts.MAX_MEASURED_PROMPTS", 2)
    assert longest_prompt(tokenizer, rows) == encode_prompts(tokenizer, ["1+1=?"]).ids.shape[1]


def test_the_longest_prompt_has_the_schemas_of_the_tools():
    tokenizer = make_tool_policy()[1]
    rows, schemas = [{"prompt": [{"role": "user", "content": "1+2"}]}], ToolEnvironment([add]).schemas
    text = tokenizer.apply_chat_template(rows[0]["prompt"], schemas, add_generation_prompt=True, tokenize=False)
    assert "system add<|im_end|>" in text
    assert longest_prompt(tokenizer, rows, schemas) == len(tokenizer(text)["input_ids"])
    assert longest_prompt(tokenizer, rows) < longest_prompt(tokenizer, rows, schemas)


def test_a_tokenizer_without_a_padding_token_pads_with_the_end_token():
    model, tokenizer = make_policy()
    tokenizer.pad_token = None
    assert pad_token_id(tokenizer) == tokenizer.eos_token_id
    rollout = sample(model, tokenizer)
    logp, _ = logprobs_of(model, rollout)
    assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4


def test_sample_completions_refuses_wrong_settings_by_name():
    wrong = [("num_generations", 0), ("max_completion_length", 0), ("top_k", -1), ("repetition_penalty", 0.0)]
    wrong += [("temperature", 0.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5)]
    policy = make_policy()
    for name, value in wrong:
        arguments = {"num_generations": 2, "max_completion_length": 3} | {name: value}
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            sample_completions(*policy, ["a"], **arguments)
    with pytest.raises(ValueError, match="cache_implementation is 'paged'; expected one of None, 'dynamic'"):
        sample(*policy, cache_implementation="paged")


WRONG_PROMPTS = [
    ([], "prompts is empty"),
    ([["a"]], r"prompts\[0\] is \['a'\]; expected a string or a non-empty list of messages"),
    (["a", ""], r"prompts\[1\] is '', which has no token"),
    (["a", [{"content": "b"}]], r"prompts\[1\]\[0\]\['role'\] is missing; expected a text"),
    ([[{"role": "user", "content": [{"type": "text"}]}]], r"\['content'\] is \[\{'type': 'text'\}\]; expected a"),
    (["a", "b" * 122], r"prompts\[1\] has 122 tokens and max_completion_length is 7; together .* be at most 128"),
]


def test_sample_completions_refuses_wrong_prompts_by_name(monkeypatch):
    model, tokenizer = make_policy()
    monkeypatch.setattr(model, "forward", None)  # fails if anything is computed before the error
    for prompts, message in WRONG_PROMPTS:
        with pytest.raises(ValueError, match=message):
            sample(model, tokenizer, prompts, length=7)


def test_a_prompt_may_fill_the_context_to_the_last_token():
    rollout = sample(*make_policy(), ["a", "b" * 121], length=7)
    assert rollout.prompt_mask.sum(-1).tolist() == [1, 121], "padding takes no place in it"


def test_a_refusing_or_missing_chat_template_is_an_error_that_names_the_prompt():
    model, tokenizer = make_policy()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match=r"prompts\[1\] is refused by the tokenizer's chat template .*alternate"):
        sample(model, tokenizer, ["a", [SAID]])
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"prompts\[0\] goes to the model as chat messages, .* has no chat_template"):
        sample(model, tokenizer, [[SAID]])
    assert sample(model, tokenizer, ["a"]).mask.any(), "strings need none"


def test_all_prompts_of_a_run_are_checked_and_the_clearly_short_ones_not_encoded(monkeypatch):
    model, tokenizer = make_policy(max_position_embeddings=5000)
    encoded = []
    counted = lambda _, prompt, tools=None: encoded.append(prompt) or [0] * 4000  # noqa: E731
    monkeypatch.setattr(prompt_checks, "encode_prompt", counted)
    check_prompts(model.config, tokenizer, ["a" * 100, [SAID], "b" * 4000], 1000)
    assert encoded == ["b" * 4000]
    with pytest.raises(TypeError, match=r"^eval_dataset row 1: prompt\[0\]\['role'\] is missing; expected"):
        check_prompts(model.config, tokenizer, ["a", [{"content": "b"}]], 1000, "eval_dataset")
