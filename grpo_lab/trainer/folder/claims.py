"""Which names in a folder a run needs, and whether somebody else has them already."""

import json
import re
from collections.abc import Container, Iterable
from pathlib import Path

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.folder.manifest import MANIFEST, Manifest

METRICS, SETTINGS, COMPLETIONS = "metrics.jsonl", "grpo_config.json", "completions.jsonl"
BOARDS = ("tensorboard", "wandb")  # the folders have the names of the settings
# What transformers calls the files of a model and of its tokenizer.
MODEL = re.compile(
    r"(generation_|tokenizer_|processor_|preprocessor_)?config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|"
    r"tokenizer\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|"
    r"chat_template\.(jinja|json)|spiece\.model|additional_chat_templates"
)
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def needed(config: GRPOConfig) -> list[str]:
    """The files and folders that the run keeps changing."""
    names = [METRICS, SETTINGS]
    names += [COMPLETIONS] if config.log_completions else []
    return names + ([config.report_to] if config.report_to in BOARDS else [])


def check_new(folder: Path, manifest: Manifest | None, config: GRPOConfig) -> None:
    """Raise FileExistsError if a new run would write over anything: a run with a step, or what is not a run's.

    A run that has not made a single step is nothing.
    """
    if manifest is not None and (manifest.checkpoints or _has_lines(folder / METRICS)):
        raise FileExistsError(
            f"output_dir {str(folder)!r} holds a run already; choose another folder, or continue it with "
            "resume_from_checkpoint=True"
        )
    if manifest is None and (what := _run_without_manifest(folder)):
        raise FileExistsError(f"output_dir {str(folder)!r} holds {what}; choose another folder")
    if manifest is None and (folder / "config.json").exists():
        raise FileExistsError(f"output_dir {str(folder)!r} holds a model already; choose another folder")
    _check_nothing_in_the_way(folder, manifest, config)


def check_resumable(folder: Path, manifest: Manifest | None, config: GRPOConfig) -> None:
    """Raise FileNotFoundError if there is no run to go on with, FileExistsError if something stands in its way."""
    if manifest is not None:
        return _check_nothing_in_the_way(folder, manifest, config)
    if not folder.exists():
        which = "does not exist"
    elif what := _run_without_manifest(folder):
        which = f"holds {what}; to go on from its weights, start a run in a new folder with a checkpoint as the model"
    else:
        which = f"holds no {MANIFEST}"
    raise FileNotFoundError(
        f"resume_from_checkpoint is True; expected a run in {str(folder)!r}, which {which}; leave it out to start one"
    )


def check_free(folder: Path, names: Iterable[str], ours: Container[str]) -> None:
    """Raise FileExistsError if a file or folder with one of these names is there and is not the run's."""
    for name in names:
        if name not in ours and (folder / name).exists():
            raise FileExistsError(
                f"output_dir {str(folder)!r} holds {name}, which is not this run's, and the run needs the name; move "
                "it away, or choose another folder"
            )


def _check_nothing_in_the_way(folder: Path, manifest: Manifest | None, config: GRPOConfig) -> None:
    ours = manifest.names() if manifest else set()
    # Where the run has gone past a step, it makes no checkpoint of it any more.
    past = min((entry["step"] for entry in manifest.checkpoints.values()), default=0) if manifest else 0
    present = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    wanted = {name for name in present if MODEL.fullmatch(name)} | set(needed(config))
    wanted |= {name for name in present if (found := CHECKPOINT.fullmatch(name)) and int(found[1]) > past}
    check_free(folder, sorted(wanted), ours)


def _run_without_manifest(folder: Path) -> str | None:
    checkpoints = [path for path in sorted(folder.glob("checkpoint-*")) if (path / "trainer_state.json").is_file()]
    if (folder / SETTINGS).is_file() or any(_is_ours(path / "trainer_state.json") for path in checkpoints):
        return f"a run of which {MANIFEST} is missing (an earlier grpo_lab wrote none)"
    if checkpoints:
        return f"a run of another trainer ({checkpoints[-1].name}), which only that trainer can resume"
    return None


def _is_ours(path: Path) -> bool:
    try:
        return "num_steps_in_metrics" in json.loads(path.read_bytes())
    except ValueError:
        return False


def _has_lines(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
