"""What the self-check decides, what it says, and that it leaves no trace."""

import copy

import pytest
import torch

from grpo_lab.models import load_policy, selfcheck
from grpo_lab.models.frozen import frozen_copy, silence_dropout, without_dropout
from grpo_lab.models.selfcheck import check_model, ensure_checked, self_check, tolerance
from grpo_lab.rollout import score as scoring
from grpo_lab.rollout.cache import SlotCache
from grpo_lab.rollout.ways import adapting_rope, context_length, sliding_window, ways_of
from grpo_lab.trainer import train
from tests.support.architectures import make_architecture
from tests.support.sampling import sample, score
from tests.support.worlds import ROWS, letter_reward, make_config, make_world, same_weights, weights


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """No architecture has been looked at."""
    monkeypatch.setattr(selfcheck, "_verdicts", {})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["qwen2", "opt", "mamba"])
def test_it_leaves_no_trace(name, training):
    model, _ = make_architecture(name)
    model.train(training)
    model.get_output_embeddings().eval()
    if training:
        model.gradient_checkpointing_enable()
    before, config = weights(model), model.config.to_json_string()
    numbers = [{k: v for k, v in vars(m).items() if isinstance(v, (bool, int, float))} for m in model.modules()]
    generation, random = model.generation_config, torch.get_rng_state()
    self_check(model)
    assert same_weights(weights(model), before) and all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.config.to_json_string() == config and model.generation_config is generation
    after = [{k: v for k, v in vars(m).items() if k in was} for m, was in zip(model.modules(), numbers, strict=True)]
    assert after == numbers and model.is_gradient_checkpointing is training


def broken(monkeypatch, way):
    if way == "shared_prompts":
        hidden = scoring._hidden_shared
        monkeypatch.setattr(scoring, "_hidden_shared", lambda *arguments: hidden(*arguments) * 0.5)
    elif way == "static_cache":
        monkeypatch.setattr(SlotCache, "load", lambda *arguments: None)
    else:
        hidden = scoring._hidden_plain
        monkeypatch.setattr(
            scoring, "_hidden_plain", lambda model, *inputs: hidden(model, *inputs) * (0.5 if model.training else 1)
        )


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("shared_prompts", "every completion computes its own prompt: the scorer with shared prompts differs"),
        ("static_cache", "sampled with the dynamic cache only: the sampler with the static cache differs"),
        ("gradient_checkpointing", "no gradient checkpointing: the scorer with gradient checkpointing differs"),
    ],
)
def test_a_short_way_that_is_wrong_is_closed_and_said(way, said, monkeypatch, capsys):
    model, tokenizer = make_world()
    broken(monkeypatch, way)
    ensure_checked(model)
    printed = capsys.readouterr().out
    assert f"policy: {said} from the model's own forward pass by " in printed
    assert ("dynamic cache only: its prompts cannot be shared" in printed) is (way == "shared_prompts")
    assert printed.count("\n") == (2 if way == "shared_prompts" else 1)
    assert list(model.rollout_forbids) == [way]
    rollout = sample(model, tokenizer)
    for share_prompts in (True, False):
        logp, _ = score(model, rollout, share_prompts=share_prompts)
        assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4, "what is left is right"
    assert ways_of(frozen_copy(model)) == ways_of(model), "a copy knows it too"
    if way == "static_cache":
        with pytest.raises(ValueError, match="cannot decode in fixed memory: the sampler with the static cache diff"):
            sample(model, tokenizer, cache_implementation="static")
        with pytest.raises(ValueError, match="cache_implementation is 'static'; expected 'dynamic' or None for this"):
            check_model(model, make_config(cache_implementation="static"))
    if way == "gradient_checkpointing":
        with pytest.raises(ValueError, match="gradient_checkpointing is True; expected False for this model: the scor"):
            check_model(model, make_config(gradient_checkpointing=True))


def test_a_part_that_stops_is_named_with_its_error(monkeypatch):
    def stop(*arguments):
        raise RuntimeError("sizes 3 and 4\nand a long explanation")

    monkeypatch.setattr(scoring, "_hidden_plain", stop)
    model, _ = make_world()
    assert self_check(model).refused == "the scorer stops with RuntimeError: sizes 3 and 4"


def test_a_lack_of_memory_is_no_verdict(monkeypatch):
    def stop(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(scoring, "_hidden_shared", stop)
    with pytest.raises(torch.OutOfMemoryError):
        self_check(make_world()[0])


def test_a_model_that_computes_nothing_is_refused():
    model, _ = make_world()
    torch.nn.init.constant_(model.model.norm.weight, torch.nan)
    assert self_check(model).refused.startswith(
        "the sampler stops with RuntimeError: the model's logits are not finite"
    )


def test_loading_checks_and_refuses_by_a_sentence(tmp_path):
    model, tokenizer = make_architecture("rwkv")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model is a RwkvForCausalLM \(rwkv\), which cannot be trained here: the"):
        load_policy(tmp_path, device="cpu")


def test_loading_says_what_is_closed(tmp_path, capsys):
    model, tokenizer = make_architecture("mamba")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    load_policy(tmp_path, device="cpu")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("the dynamic cache only: its kind is mamba, and fixed memory was not tried with that")


def test_a_run_checks_a_model_that_was_not_loaded_here_and_each_architecture_once(monkeypatch):
    seen, check = [], selfcheck.self_check
    monkeypatch.setattr(selfcheck, "self_check", lambda model: seen.append(model) or check(model))
    for seed in (0, 1):
        model, tokenizer = make_world(seed=seed)
        train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=1, beta=0.1))
    assert len(seen) == 1
    model.lm_head.bias = torch.nn.Parameter(torch.ones(len(tokenizer)))
    del model.rollout_forbids
    ensure_checked(model)
    assert len(seen) == 2, "other parameters make another architecture"
    model, tokenizer = make_architecture("rwkv")
    with pytest.raises(ValueError, match="cannot be trained here"):
        train(model, tokenizer, ROWS, letter_reward, make_config())


@pytest.mark.parametrize(
    ("window", "length", "beyond"), [(6, 15, None), (128, 137, None), (129, 9, 129), (4096, 9, 4096)]
)
def test_it_reaches_beyond_a_small_window_and_says_so_of_a_large_one(window, length, beyond, capsys):
    settings = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    model, _ = make_world(max_position_embeddings=8192, **settings)
    verdict = self_check(model)
    assert (verdict.refused, verdict.length, verdict.window) == (None, length, beyond)
    ensure_checked(model)
    said = f"policy: checked on 9 tokens, which is less than its sliding window of {window:,}; beyond"
    assert (said in capsys.readouterr().out) is (beyond is not None)


def test_it_stays_within_the_context():
    model, _ = make_world(max_position_embeddings=8)
    assert self_check(model) == selfcheck.Verdict(length=8)


@pytest.mark.parametrize(
    ("settings", "context", "window"),
    [
        ({}, 128, None),
        ({"sliding_window": 9}, 128, None),
        ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 0}, 128, 9),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, 128, None),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 32,
                }
            },
            32,
            None,
        ),
    ],
)
def test_context_and_window_of_a_configuration(settings, context, window):
    config = make_world(**settings)[0].config
    assert (context_length(config), sliding_window(config)) == (context, window)


def test_a_rotation_for_each_kind_of_layer():
    model, _ = make_architecture("gemma3_text")
    assert adapting_rope(model.config) is None
    given = model.config.rope_parameters
    model.config.rope_parameters = given | {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}
    assert adapting_rope(model.config)["rope_type"] == "dynamic"


def test_contexts_by_other_names():
    named = {"gpt2": 64, "mpt": 64, "bloom": None, "xlnet": None, "llama (llama3 rope)": 64}
    assert {name: context_length(make_architecture(name)[0].config) for name in named} == named


def test_the_tolerance_goes_by_the_dtype():
    asked = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    assert [tolerance(dtype) for dtype in asked] == [1e-3, 1e-3, 0.02, 0.15]
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert tolerance(torch.float32) == 0.02, "TensorFloat32 has float16's 10 bits"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "granite", "gpt2"])
def test_sound_models_in_half_precision_pass(name):
    model, _ = make_architecture(name)
    assert self_check(model.bfloat16()).refused is None


@pytest.mark.parametrize("name", ["opt", "gpt2", "biogpt", "xglm", "mixtral", "seed_oss"])
def test_no_dropout_is_left_wherever_an_architecture_keeps_it(name):
    noisy = {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.3, "resid_pdrop": 0.3, "router_jitter_noise": 0.2}
    model, _ = make_architecture(name, **noisy)
    ids = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(0))
    quiet = model(ids, use_cache=False).logits
    model.train()
    assert not torch.equal(model(ids, use_cache=False).logits, quiet)
    with without_dropout(model):
        torch.testing.assert_close(model(ids, use_cache=False).logits, quiet)
    assert not torch.equal(model(ids, use_cache=False).logits, quiet), "put back"
    untouched = copy.deepcopy(model)
    silence_dropout(model)
    torch.testing.assert_close(model(ids, use_cache=False).logits, quiet)
    assert same_weights(weights(model), weights(untouched))
