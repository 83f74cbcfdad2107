"""The precisions of full-parameter training: the choice of one, and the origin that a loaded model keeps."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, Origin, bf16_warning, origin_of, precision_of, set_origin
from grpo_lab.evaluate import evaluate
from grpo_lab.rollout.environments import environment
from grpo_lab.rollout.sample import sample_prompts
from tests.support.small_policy import make_policy

CHOICES = [
    (torch.float32, {}, "fp32"),
    (torch.bfloat16, {}, "bf16"),
    (torch.float32, {"bf16": True}, "fp32-master"),
    (torch.float32, {"fp16": True}, "fp16"),
    (torch.bfloat16, {"bf16": True}, "bf16"),
    *[(entry.weights, {"precision": name}, name) for name, entry in PRECISIONS.items()],
]


def test_the_precision_follows_the_configuration_then_the_weights():
    for dtype, config, name in CHOICES:
        assert precision_of(make_policy()[0].to(dtype), GRPOConfig(**config)) is PRECISIONS[name]
        expected_request = (
            {"fp32-master": "fp32-master", "fp16": "fp16"}.get(name) if "precision" not in config else name
        )
        if dtype == torch.float32:
            assert GRPOConfig(**config).requested_precision == expected_request
    in_float64 = precision_of(make_policy()[0].double(), GRPOConfig())
    assert in_float64.name == "fp32" and in_float64.weights == torch.float64 and in_float64.autocast is None


def test_without_a_config_the_loaded_precision_stays():
    model, _ = make_policy()
    for dtype, name, arithmetic in (
        (torch.float32, "fp16", torch.float16),
        (torch.float32, None, None),
        (torch.bfloat16, "fp32-master", None),
        (torch.bfloat16, None, None),
        (torch.float16, None, None),
        (torch.float64, "fp32", None),
    ):
        set_origin(model.to(dtype), precision=name)
        assert (precision_of(model).weights, precision_of(model).autocast) == (dtype, arithmetic)


MISFITS = [
    (torch.bfloat16, {"precision": "fp32"}, "precision is 'fp32', which trains torch.float32 weights, .* torch.bf"),
    (torch.float32, {"precision": "bf16"}, r"the model's are torch.float32; load it with .*precision='bf16'"),
    (torch.float64, {"precision": "fp32-master"}, "the model's are torch.float64"),
    (torch.bfloat16, {"fp16": True}, "fp16 is True, which trains torch.float32 weights"),
    (torch.float16, {}, "model has weights of torch.float16; .*precision='fp16'"),
]


def test_weights_that_do_not_fit_the_precision_are_refused_with_a_remedy():
    for dtype, config, message in MISFITS:
        with pytest.raises(ValueError, match=message):
            precision_of(make_policy()[0].to(dtype), GRPOConfig(**config))
    model, _ = make_policy()
    model.lm_head.bfloat16()
    with pytest.raises(ValueError, match="model has weights of torch.bfloat16, torch.float32; expected"):
        precision_of(model, GRPOConfig())


@pytest.mark.parametrize("name", [None, *PRECISIONS])
def test_evaluation_computes_as_the_model_was_loaded(name, monkeypatch):
    model, tokenizer = make_policy()
    set_origin(model, precision=name)
    if name:
        model.to(PRECISIONS[name].weights)
    seen = []

    def spy(*arguments):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return sample_prompts(*arguments)

    monkeypatch.setattr(environment, "sample_prompts", spy)
    evaluate(model, tokenizer, [{"prompt": "abc", "answer": "1"}], max_completion_length=2)
    assert seen == [PRECISIONS[name].autocast if name else None]


def test_only_a_cpu_without_bf16_is_called_slow_in_bf16_precisions(monkeypatch):
    warnings = []
    for capabilities in ({"avx2": True, "avx512_bf16": False}, {"avx2": True, "avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda available=capabilities: available)
        warnings += [
            bf16_warning(torch.device("cpu"), PRECISIONS[name]) for name in ("fp32-master", "bf16-naive", "fp32")
        ]
    assert [text is not None for text in warnings] == [True, True, False, False, False, False]
    assert warnings[0] == "this CPU has no bf16, so fp32-master is several times slower than fp32"


def test_the_origin_of_a_model_is_changed_field_by_field_and_copied_with_it():
    model = nn.Linear(1, 1)
    assert origin_of(model) == Origin(precision=None, name=None, merged_adapter=None)
    set_origin(model, precision="fp32", name="Qwen/Qwen2-0.5B")
    set_origin(model, merged_adapter="adapter")
    assert origin_of(model) == origin_of(deepcopy(model)) == Origin("fp32", "Qwen/Qwen2-0.5B", "adapter")
    with pytest.raises(TypeError, match="mode"):
        set_origin(model, mode="fp32")
