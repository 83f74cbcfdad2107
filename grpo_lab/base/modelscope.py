"""The local cache of ModelScope, into which `modelscope download` writes models and data sets."""

import os
from pathlib import Path


def modelscope_cache() -> Path:
    return Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope").expanduser()


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
