"""`grpo_run.json`: what a run owns in its folder, and what it began with. Nothing that it does not name is touched.

It is the run's journal, too. A checkpoint counts from the moment it stands there: what comes after (the folder's
rename, the removal of older ones) is made up for when the run goes on.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from grpo_lab.trainer.folder.files import write_whole

MANIFEST = "grpo_run.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """All names are relative to the folder, with slashes. Files are described by size in bytes and SHA-256.

    settings: with which the run began; `max_steps` is that of its last part.
    fingerprints: of model, data set, rewards and tokenizer at its beginning.
    owned: files and folders of the run that change all the time, such as metrics.jsonl.
    checkpoints: by name: "step", "files", "weights" (their fingerprint), "lines" (bytes in each file of lines then).
    model: the files of the trained model, beside the metrics.
    doomed: checkpoints that are being removed, with the names of their files.
    best: the step whose checkpoint is the best; None if none is marked.
    """

    settings: dict
    fingerprints: dict
    owned: list[str] = field(default_factory=list)
    checkpoints: dict[str, dict] = field(default_factory=dict)
    model: dict[str, list] = field(default_factory=dict)
    doomed: dict[str, list[str]] = field(default_factory=dict)
    best: int | None = None
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        content = asdict(self)
        write_whole(folder / MANIFEST, json.dumps({"checksum": _checksum(content)} | content, indent=1) + "\n")

    def names(self) -> set[str]:
        """Whatever stands right in the folder by the run's doing."""
        return {*self.owned, *self.checkpoints, *self.doomed, *(name.split("/")[0] for name in self.model)}

    def newest_first(self) -> list[str]:
        return sorted(self.checkpoints, key=lambda name: -self.checkpoints[name]["step"])


def read(folder: Path) -> Manifest | None:
    """The manifest in the folder; None if there is none.

    Raises:
        ValueError: if it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        checksum, version = content.pop("checksum"), content.get("format")
        sound = checksum == _checksum(content)
    except (ValueError, KeyError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ValueError(
            f"{str(path)!r} is not what the run wrote: it was edited, cut or damaged, and without it nothing in the "
            "folder is safe to touch. Restore it from a copy; or start a new run in another folder, with one of this "
            "folder's checkpoints as its model"
        )
    if version != FORMAT or content.keys() != {one.name for one in fields(Manifest)}:
        raise ValueError(
            f"{str(path)!r} has format {version}; expected {FORMAT}: resume with the grpo_lab that wrote it"
        )
    return Manifest(**content)


def _checksum(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
