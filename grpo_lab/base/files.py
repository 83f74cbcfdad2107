"""Files and names that several packages share: those of a run, safe writing, the lessons, and ModelScope's folders.

First the names of files and metrics of a run; then `write_atomically` with its steps, `lesson_files`, and the folders
where ModelScope keeps what it has downloaded. `setup.py` runs this module as a file, and `diagnose` uses it without
importing torch.
"""

import contextlib
import os
from pathlib import Path

# Files in the folder of a run, and metrics in the first of them that several packages read.
METRICS_FILE = "metrics.jsonl"  # one JSON object per step
COMPLETIONS_FILE = "completions.jsonl"  # one JSON object per completion
SETTINGS_FILE = "grpo_config.json"  # the settings of the run
# The only metric of an update that is a maximum over all tokens; every other one is a sum or a mean.
LOGP_DIFFERENCE_MAX = "sampling/logp_difference_max"
# Share of tokens whose log-probabilities differ by more than LOGP_TOLERANCE in trainer/metrics.py.
FRAC_LOGP_DIFFERENCE = "sampling/frac_logp_difference"
FRAC_TRAINED_REPLIES = "tools/frac_trained"  # share of the environments' tokens that the loss counts; 0 expected
# The files of the lessons, which are in notebooks/ of a checkout and in grpo_lab/lessons of a wheel.
LESSON_PATTERNS = ("*.ipynb", "assignments/*.ipynb", "images/*", "runs/*.json", "zh/**/*.ipynb")
PACKAGE = Path(__file__).resolve().parents[1]
LESSON_FOLDER = PACKAGE / "lessons" if (PACKAGE / "lessons").is_dir() else PACKAGE.parent / "notebooks"


def write_atomically(file: Path, text: str, unfinished_folder: Path | None = None) -> None:
    """Write a text file so that after a crash it holds either the old text or the new one.

    An unpaired surrogate, half of a character that UTF-8 cannot encode, is written as a question mark.

    Args:
        file: The file to write.
        text: Its new content.
        unfinished_folder: Folder on the same disk for the file while it is written, which is made if it does not exist.
            None writes it beside the file, with the ending ".unfinished".
    """
    if unfinished_folder is None:
        unfinished = file.with_name(file.name + ".unfinished")
    else:
        unfinished_folder.mkdir(exist_ok=True)
        unfinished = unfinished_folder / file.name
    unfinished.write_bytes(text.encode("utf-8", "replace"))
    flush(unfinished)
    publish(unfinished, file)


def publish(unfinished: Path, final: Path) -> None:
    """Move a file or folder that has been flushed to its final place, and flush the folder that contains it."""
    os.replace(unfinished, final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk; a folder only if the system supports it."""
    is_folder = path.is_dir()
    with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lesson_files(folder: Path = LESSON_FOLDER) -> list[Path]:
    """Return the paths of all files of the lessons, English and Chinese, relative to the folder."""
    files = [path for pattern in LESSON_PATTERNS for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [path.relative_to(folder) for path in files]


def modelscope_folder(hub_id: str, kind: str = "models") -> Path | None:
    """Return the folder of a model or a data set in ModelScope's cache; None if it is not there.

    All layouts of the cache so far are searched: with and without hub/ and models/, with dots as ___, and with
    owner--name/snapshots/.

    hub_id: The id on the hub, OWNER/NAME.
    kind: "models" or "datasets".
    """
    owner, name = hub_id.lower().split("/")
    spellings = (f"{owner}/{name.replace('.', '___')}", f"{owner}/{name}", f"{owner}--{name}/snapshots")
    for parents in (kind, f"hub/{kind}", "hub", ""):
        base = modelscope_cache() / parents
        # Case is ignored: the owner is "qwen" in older downloads and "Qwen" in newer ones.
        folders = {
            path.relative_to(base).as_posix().lower(): path for path in sorted(base.glob("*/*")) if path.is_dir()
        }
        if folder := next((folders[spelling] for spelling in spellings if spelling in folders), None):
            if folder.name != "snapshots":
                return folder
            inside = sorted(path for path in folder.iterdir() if path.is_dir())
            return next((path for path in inside if path.name in ("master", "main")), next(iter(inside), None))
    return None


def modelscope_cache() -> Path:
    return Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope").expanduser()
