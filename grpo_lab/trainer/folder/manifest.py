"""`grpo_run.json`: what a run owns in its folder, and what it began with. Nothing that it does not name is touched."""

import contextlib
import hashlib
import json
import re
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grpo_lab.commands.checks import InputError
from grpo_lab.config import SETTINGS_FILE, GRPOConfig
from grpo_lab.trainer.folder.files import as_json, write_whole
from grpo_lab.trainer.stopping import RESUME

MANIFEST = "grpo_run.json"
METRICS, COMPLETIONS = "metrics.jsonl", "completions.jsonl"
CHANGING = (METRICS, SETTINGS_FILE, COMPLETIONS, "tensorboard")  # files and folders that a run keeps changing
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# What transformers calls the files of a model and of its tokenizer.
MODEL = re.compile(
    r"(generation_|tokenizer_|processor_|preprocessor_)?config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|"
    r"tokenizer\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|"
    r"chat_template\.(jinja|json)|spiece\.model|additional_chat_templates"
)


@dataclass(frozen=True)
class Manifest:
    """All names are relative to the folder, with slashes. Files are described by size in bytes and SHA-256.

    settings: with which the run began; `max_steps` is that of its last part.
    ingredients: model, data set, rewards, tokenizer and engine at its beginning, as `fingerprints` describes them.
    checkpoints: by name: "step", "files", "model" (its fingerprint).
    model: the files of the trained model, beside the metrics.
    """

    settings: dict
    ingredients: dict
    checkpoints: dict[str, dict] = field(default_factory=dict)
    model: dict[str, list] = field(default_factory=dict)

    def written(self, folder: Path, **changes) -> "Manifest":
        """Write it with some of its fields changed, and return what was written."""
        changed = replace(self, **changes)
        content = asdict(changed)
        write_whole(folder / MANIFEST, as_json({"checksum": _checksum(content)} | content, indent=1) + "\n")
        return changed

    def newest_first(self) -> list[str]:
        return sorted(self.checkpoints, key=lambda name: -self.checkpoints[name]["step"])

    def surplus(self, limit: int | None, best: int | None) -> list[str]:
        """The oldest checkpoints, for which a limit has no room; the newest and that of the best step always stay."""
        names = self.newest_first()
        staying = {*names[:1], f"checkpoint-{best}"} & set(names)
        count = len(names) - max(limit or len(names), len(staying))
        return [name for name in reversed(names) if name not in staying][: max(count, 0)]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in the folder; None if there is none.

    Raises:
        InputError: if it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("checksum") == _checksum(content):
            return Manifest(**content)
    raise InputError(
        f"{str(path)!r} is not what the run wrote: it was edited, cut or damaged, and without it nothing in the "
        "folder is safe to touch. Restore it from a copy, or resume with the version of grpo_lab that wrote it; or "
        "start a new run in another folder, with one of this folder's checkpoints as its model"
    )


def check_folder(config: GRPOConfig) -> Manifest | None:
    """The manifest in the output folder, if the folder is fit for this run. Nothing is changed.

    Raises:
        FileExistsError: if the run would write over another run, a model or another file.
        FileNotFoundError: if there is no run to resume.
        InputError: if the manifest is damaged.
    """
    folder, resume = Path(config.output_dir), config.resume_from_checkpoint
    manifest, metrics = read_manifest(folder), folder / METRICS
    if resume and manifest is None:
        which = f"holds no {MANIFEST}" if folder.exists() else "does not exist"
        raise FileNotFoundError(
            f"resume_from_checkpoint is True; expected a run in {str(folder)!r}, which {which}; leave it out to start "
            "one, in a new folder"
        )
    ours, past = set(), 0
    if manifest is not None:
        begun = metrics.is_file() and metrics.stat().st_size > 0  # one that has not made a step is no obstacle
        if (manifest.checkpoints or begun) and not resume:
            raise FileExistsError(
                f"output_dir {str(folder)!r} holds a run already; choose another folder, or continue it with {RESUME}"
            )
        ours = {*CHANGING, *manifest.checkpoints, *(name.split("/")[0] for name in manifest.model)}
        # Where the run has gone past a step, it makes no checkpoint of it any more.
        past = min((entry["step"] for entry in manifest.checkpoints.values()), default=0)
    needed = [
        path.name
        for path in sorted(folder.glob("*"))
        if MODEL.fullmatch(path.name)
        or path.name in CHANGING
        or ((found := CHECKPOINT.fullmatch(path.name)) and int(found[1]) > past)
    ]
    check_free(folder, needed, ours)
    return manifest


def check_free(folder: Path, names: Iterable[str], ours: Container[str]) -> None:
    """Raise FileExistsError if files or folders with these names are there and are not the run's."""
    if found := [name for name in names if name not in ours and (folder / name).exists()]:
        raise FileExistsError(
            f"output_dir {str(folder)!r} holds {', '.join(found)}, not written by this run, which needs the name; move "
            "it away, or choose another folder"
        )


def _checksum(content: dict) -> str:
    return hashlib.sha256(as_json(content, sort_keys=True).encode()).hexdigest()
