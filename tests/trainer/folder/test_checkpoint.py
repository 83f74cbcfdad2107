"""One checkpoint: whatever the architecture, it comes back bit for bit, and transformers reads it, too."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.manifest import of_model
from tests.support.architectures import ARCHITECTURES, make_architecture
from tests.support.worlds import same_weights, weights

QUICK = ("mixtral", "gemma2", "gpt2")  # experts that are saved under other names, tied weights, transposed weights


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ARCHITECTURES]
)
def test_every_architecture_comes_back_bit_for_bit(name, tmp_path):
    model, tokenizer = make_architecture(name)
    checkpoint.write(tmp_path / "c", model, tokenizer)
    before, written = weights(model), of_model(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    checkpoint.load_weights(tmp_path / "c", model)
    assert same_weights(weights(model), before) and of_model(model) == written
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c", local_files_only=True)
    assert of_model(loaded) == written
