"""One checkpoint: whatever the architecture, it comes back bit for bit, and transformers reads it, too."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.files import fault
from grpo_lab.trainer.folder.same_run import of_model
from tests.support.architectures import ARCHITECTURES, make_architecture
from tests.support.resuming import files
from tests.support.worlds import make_world, same_weights, weights

QUICK = ("mixtral", "gemma2", "gpt2")  # experts that are saved under other names, tied weights, transposed weights


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ARCHITECTURES]
)
def test_every_architecture_comes_back_bit_for_bit(name, tmp_path):
    model, tokenizer = make_architecture(name)
    described = checkpoint.write(tmp_path / "c", model, tokenizer, {"0.step": torch.ones(1)}, {"step": 1})
    before, written = weights(model), of_model(model)
    checkpoint.load_weights(tmp_path / "c", described, moved(model))
    assert same_weights(weights(model), before) and of_model(model) == written
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c", local_files_only=True)
    assert of_model(loaded) == written


def test_state_optimizer_and_reference_come_back(tmp_path):
    (model, tokenizer), (reference, _), (other, _) = make_world(), make_world(seed=1), make_world(seed=2)
    tensors, state = {"0.exp_avg": torch.randn(3)}, {"step": 7, "loss_scale": 0.1}
    described = checkpoint.write(tmp_path / "c", model, tokenizer, tensors, state, reference)
    assert described.keys() == {name for name in files(tmp_path / "c") if "." in name}
    assert fault(tmp_path / "c", described) is None
    got_state, got = checkpoint.load(tmp_path / "c", described, moved(model), other)
    assert got_state == state and torch.equal(got["0.exp_avg"], tensors["0.exp_avg"])
    assert same_weights(weights(model), weights(make_world()[0]))
    assert same_weights(weights(other), weights(reference))
