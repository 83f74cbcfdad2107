"""The checkpoints of a run on the disk, and the manifest that says which of them count."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from grpo_lab.trainer.folder import manifest
from grpo_lab.trainer.folder.files import UNFINISHED, explained, fault, publish, remove, sync_file, write_whole
from grpo_lab.trainer.stopping import how_to_go_on, what_is_saved


class Journal:
    """What stands in a folder by the doing of one run. Every change is in the manifest before it is made.

    manifest: as it is on the disk; None where no run has begun.
    """

    def __init__(self, path: Path):
        self.path, self.manifest = path, manifest.read(path)

    def commit(self, **changes) -> None:
        """Write the manifest with some of its fields changed."""
        changed = replace(self.manifest, **changes)
        changed.write(self.path)
        self.manifest = changed

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Explain what goes wrong below in one sentence, with what is saved and how to go on."""
        with explained(path, f"go on with {how_to_go_on()}. {self.saved()}"):
            yield

    def saved(self) -> str:
        names = self.manifest.newest_first() if self.manifest else []
        return what_is_saved(self.path, names[0] if names else None)

    def finish_renames(self) -> None:
        """A checkpoint that the manifest names was whole before its folder was renamed; so rename it now."""
        for name in self.manifest.checkpoints:
            unfinished, final = self.path / UNFINISHED / name, self.path / name
            if unfinished.is_dir() and not final.exists():
                publish(unfinished, final)

    def add(self, name: str, entry: dict, **changes) -> None:
        """Let a checkpoint count that lies unfinished, but on the disk; then put it in its place."""
        self.commit(checkpoints=self.manifest.checkpoints | {name: entry}, **changes)
        publish(self.path / UNFINISHED / name, self.path / name)

    def discard(self, names: list[str]) -> None:
        """Remove checkpoints, and those whose removal was cut short. A file in them that is not the run's stays."""
        kept = {name: entry for name, entry in self.manifest.checkpoints.items() if name not in names}
        doomed = {name: sorted(self.manifest.checkpoints[name]["files"]) for name in names} | self.manifest.doomed
        if not doomed:
            return
        best = self.manifest.best if f"checkpoint-{self.manifest.best}" in kept else None
        self.commit(checkpoints=kept, doomed=doomed, best=best)
        for name, files in doomed.items():
            remove(self.path / name, files)
            if (self.path / name).exists():
                print(f"{str(self.path / name)!r} stays: it holds files that are not the run's")
        self.commit(doomed={})

    def surplus(self, limit: int | None) -> list[str]:
        """The oldest checkpoints for which there is no room; the newest and the best always stay."""
        names = self.manifest.newest_first()
        staying = {names[0], f"checkpoint-{self.manifest.best}"} & set(names)
        count = len(names) - max(limit or len(names), len(staying))
        return [name for name in reversed(names) if name not in staying][: max(count, 0)]

    def newest_good(self) -> tuple[str | None, list[str]]:
        """The newest checkpoint that is as it was written, and those after it, which are not: they are named aloud.

        Raises:
            ValueError: if there are checkpoints, and none is good.
        """
        broken = {}
        for name in self.manifest.newest_first():
            what = fault(self.path / name, self.manifest.checkpoints[name]["files"])
            if what is None:
                for other, why in broken.items():
                    print(f"{str(self.path / other)!r} is broken ({why}); {name}, which is older, is taken")
                return name, list(broken)
            broken[name] = what
        if broken:
            listed = "; ".join(f"{name}: {what}" for name, what in broken.items())
            raise ValueError(
                f"no checkpoint in {str(self.path)!r} is whole ({listed}); restore one from a copy, or start a new run "
                "in another folder. Nothing has been removed"
            )
        return None, []


def as_line(record: dict) -> str:
    """With the letters themselves, for people to read."""
    return json.dumps(record, ensure_ascii=False) + "\n"


def append_lines(path: Path, records: Iterable[dict]) -> None:
    with open(path, "a", encoding="utf-8", newline="\n") as file:
        file.write("".join(as_line(record) for record in records))


def sync_lines(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Wait until these files of lines are on the disk; their sizes in bytes."""
    found = [folder / name for name in names if name.endswith(".jsonl") and (folder / name).is_file()]
    for path in found:
        sync_file(path)
    return {path.name: path.stat().st_size for path in found}


def cut_lines(path: Path, size: int) -> None:
    """Take away what was appended after a checkpoint."""
    now = path.stat().st_size if path.is_file() else 0
    if now < size:
        print(f"{str(path)!r} has {now:,} bytes, and had {size:,} at the checkpoint: some of its lines are lost")
    elif now > size:
        os.truncate(path, size)


def restore_text(path: Path, text: str, source: str, tail: bool = False) -> None:
    """Write a file of the run anew, unless it is what it was; that it had been changed is said aloud.

    tail: whether lines may follow, which are taken away without a word.
    """
    now, want = path.read_bytes() if path.is_file() else None, text.encode()
    if now == want:
        return
    if now is None or not (tail and now.startswith(want)):
        what = "is missing" if now is None else "is not as the run wrote it (edited, cut or damaged)"
        print(f"{str(path)!r} {what}: it is written anew from {source}")
    write_whole(path, text)
