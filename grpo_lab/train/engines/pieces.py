"""A model that FSDP2 divides among processes: read once, by the first, and gathered again when it is saved."""

from pathlib import Path

import torch
from torch import nn

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.models.adapters import has_adapter
from grpo_lab.train.engines.processes import is_main


def load_once(name: str, precision: str):
    """The model and its tokenizer for a process of several; only the first one reads the weights, on the CPU.

    The other processes get the shape with memory that nothing has been written into, which the system does not hand
    out before that. FSDP2 then sends each of them its part.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from grpo_lab.models import load_policy
    from grpo_lab.models.folders import usable_folder
    from grpo_lab.models.loading import load_tokenizer, make_savable, open_part

    if is_main():
        return load_policy(name, "cpu", precision)
    folder = usable_folder(name)[0]
    config = open_part(AutoConfig, folder)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=PRECISIONS[precision].weights)
    for module in model.modules():
        for part, parameter in module.named_parameters(recurse=False):
            setattr(module, part, nn.Parameter(torch.empty_like(parameter, device="cpu")))
    model.tie_weights()
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
        make_savable(model)
    model.loaded_for = precision
    return model.eval(), load_tokenizer(folder)


class Gathered:
    """The whole weights, or the whole adapter, of a model in pieces: kept by the first process, on its CPU.

    All processes have to make one, since each sends its pieces.
    """

    def __init__(self, model: nn.Module):
        self.model, self.state = model, {}
        for name, piece in model.state_dict().items():
            if has_adapter(model) and "lora_" not in name:
                continue
            whole = piece.full_tensor() if hasattr(piece, "full_tensor") else piece
            if is_main():
                self.state[name] = whole.detach().cpu()

    def save_pretrained(self, folder: Path) -> None:
        self.model.save_pretrained(folder, state_dict=self.state)
