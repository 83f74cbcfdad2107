"""Loading and saving a model that FSDP2 divides among processes."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from grpo_lab.config.precision import PRECISIONS, set_origin
from grpo_lab.models import load_policy
from grpo_lab.models.adapters import has_adapter
from grpo_lab.models.folders import ModelFiles, find_model
from grpo_lab.models.loading import load_component, load_padding_tokenizer, make_savable
from grpo_lab.train.processes import is_main_process


def load_in_first_process(name: str | ModelFiles, precision: str):
    """Return the model and its tokenizer; only the first process reads the weights, into CPU memory.

    The other processes get a model of the same shape with uninitialised parameters. These take no memory, since the
    operating system allocates a page when it is first written. FSDP2 then sends each process its part of the weights.

    name: The name or the files of the model, as `load_policy` takes them.
    precision: The precision to load the model in, one of `PRECISIONS`.
    """
    from accelerate import init_empty_weights  # an extra: this module is also imported without it

    if is_main_process():
        return load_policy(name, "cpu", precision)
    files = find_model(name, "cpu")
    config = load_component(AutoConfig, files)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=PRECISIONS[precision].weights)
    for module in model.modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            setattr(module, parameter_name, nn.Parameter(torch.empty_like(parameter, device="cpu")))
    model.tie_weights()
    if (files.folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(files.folder)
        make_savable(model)
    set_origin(model, precision=precision)
    return model.eval(), load_padding_tokenizer(files)


class GatheredModel:
    """The complete weights of a divided model, or its complete adapter, in the CPU memory of the first process.

    All processes have to construct it, since each sends its part.
    """

    def __init__(self, model):
        self.model, self.state = model, {}
        for name, tensor in model.state_dict().items():
            if has_adapter(model) and "lora_" not in name:
                continue
            complete_tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if is_main_process():
                self.state[name] = complete_tensor.detach().cpu()

    def save_pretrained(self, folder: Path) -> None:
        self.model.save_pretrained(folder, state_dict=self.state)
