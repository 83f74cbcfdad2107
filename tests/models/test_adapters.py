"""The base model that a saved adapter names, and the settings of an adapter, which tests/trainer/test_lora.py trains.

A frozen copy keeps its weights while the model changes.
"""

import copy
import json

import pytest
import torch

from grpo_lab.models import add_lora
from grpo_lab.models.adapters import adapter_settings, base_model_name, frozen_copy, has_adapter
from tests.support.small_policy import make_policy

LORA = {"base_model_name_or_path": "someone/base", "peft_type": "LORA"}


def write_adapter(folder, config, weights: bool = True):
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    if weights:
        (folder / "adapter_model.safetensors").touch()
    return folder


def test_an_adapter_names_its_base_model(tmp_path):
    assert base_model_name(write_adapter(tmp_path, LORA)) == "someone/base"


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ("{", True, "whose adapter_config.json is damaged; expected a LoRA adapter, or a whole model"),
        ("[1]", True, "whose adapter_config.json is damaged; expected a LoRA adapter, or a whole model"),
        (LORA | {"peft_type": "IA3"}, True, "which holds a IA3 adapter for 'someone/base' and not a whole model"),
        (LORA | {"base_model_name_or_path": None}, True, "which holds a LORA adapter for None and not a whole model"),
        (LORA | {"modules_to_save": ["lm_head"]}, True, r"which holds \['lm_head'\] as well; merge it with peft"),
        (LORA | {"trainable_token_indices": [3]}, True, r"which holds \[3\] as well; merge it with peft"),
        (LORA, False, "which has no adapter_model.safetensors; pickled files are not opened"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_in_one_sentence(config, weights, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        base_model_name(write_adapter(tmp_path, config, weights))


def test_settings_of_an_adapter_are_read_from_its_model():
    pytest.importorskip("peft")
    model = make_policy()[0]
    assert not has_adapter(model)
    add_lora(model, lora_r=2, lora_alpha=6, lora_target_modules=["v_proj", "q_proj"])
    assert has_adapter(model)
    assert adapter_settings(model) == {"r": 2, "alpha": 6, "target_modules": ["q_proj", "v_proj"]}


def test_a_frozen_copy_shares_no_tensor_and_leaves_the_model_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train()
    reference = frozen_copy(model)
    assert all(p.requires_grad for p in model.parameters())
    assert model.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert not any(module.training for module in reference.modules())
    start = copy.deepcopy(reference.state_dict())
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(reference[0].weight, start["0.weight"])
    assert torch.equal(model[0].weight, start["0.weight"] + 1)
