"""Make small random models of many architectures, from the configurations in architectures.yaml."""

from pathlib import Path

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from tests.support.small_policy import make_tokenizer

ARCHITECTURES: dict[str, dict] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))["architectures"]
WINDOW = ARCHITECTURES["mistral (windows)"]["sliding_window"]


def make_architecture(name: str, **changes):
    """Return a random model whose predictions depend on its input, and a tokenizer for it."""
    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(name.split()[0], **(ARCHITECTURES[name] | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for part, parameter in model.named_parameters():
                if parameter.ndim > 1 or "bias" in part:
                    parameter.normal_(0, 0.3)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    return model, tokenizer
