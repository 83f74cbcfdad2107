"""Whether a run that is resumed is still the run that began: its settings, and what it was begun with."""

import json
from pathlib import Path

from grpo_lab.trainer.folder.manifest import Manifest

# Settings that may change between a run and its continuation, because no number depends on them.
FREE_SETTINGS = (
    *("output_dir", "resume_from_checkpoint", "save_steps", "save_total_limit", "report_to", "disable_tqdm"),
    *("run_name", "logging_steps", "log_completions", "num_completions_to_print"),
    *("early_stopping_patience", "early_stopping_threshold"),
)


def check_same_run(folder: Path, before: Manifest, settings: dict, prints: dict) -> None:
    """Raise ValueError for the first thing that would lead to other numbers than the run would have had."""
    check_settings(folder, before.settings, settings)
    if fault := _difference(before, prints):
        raise ValueError(fault.format(folder=str(folder)))


def check_settings(folder: Path, before: dict, settings: dict) -> None:
    """Every setting that counts is what it was; only `max_steps` may grow."""
    now = json.loads(json.dumps(settings))
    changed = {k: (before.get(k), v) for k, v in now.items() if k not in FREE_SETTINGS and before.get(k) != v}
    changed.pop("max_steps", None)
    if changed:
        listed = ", ".join(f"{name}: was {old!r}, is {new!r}" for name, (old, new) in changed.items())
        raise ValueError(f"config differs from that of the run in {str(folder)!r} ({listed}); resume it unchanged")


def check_length(folder: Path, done: int, before: dict, settings: dict) -> None:
    """`max_steps` covers what is done already; where it changes what the steps to come learn at, that is said aloud."""
    was, now = before["max_steps"], settings["max_steps"]
    if now < done:
        raise ValueError(f"max_steps is {now}; it must be at least {done}, the steps that the run in {str(folder)!r} "
                         "has made")  # fmt: skip
    schedule = settings["lr_scheduler_type"]
    if now != was and not schedule.startswith("constant"):
        print(f"max_steps was {was}, is {now}: from here on the {schedule} schedule is that of a run of {now} steps")


def _difference(before: Manifest, now: dict) -> str | None:
    """What is another one than when the run began; None if nothing is."""
    was = before.fingerprints
    if fault := _other_model(before, now) or _other_rows(was, now):
        return fault
    if now["tokenizer"] != was["tokenizer"]:
        return "tokenizer differs from that of the run in {folder!r}; load the one with which it began"
    return _other_rewards(was["reward_funcs"], now["reward_funcs"])


def _other_model(before: Manifest, now: dict) -> str | None:
    """The model may be that of the start, or of any checkpoint: its weights are about to be loaded anyway."""
    was = before.fingerprints
    if now["model"] not in {was["model"], *(entry["weights"] for entry in before.checkpoints.values())}:
        return (
            "model differs from the one that the run in {folder!r} began with, and from all of its checkpoints; load "
            "the one it began with, or one of them"
        )
    if now["trained_parameters"] != was["trained_parameters"]:
        counts = [prints["trained_parameters"][0] for prints in (was, now)]
        return (
            f"model has {counts[1]} parameters that require a gradient; expected the {counts[0]} with which the run in "
            "{folder!r} began"
        )
    return None


def _other_rows(was: dict, now: dict) -> str | None:
    for name in ("dataset", "eval_dataset"):
        if now[name] != was[name]:
            then, this = ((prints[name] or [0])[0] for prints in (was, now))
            sizes = f" (it had {then:,} rows, this one has {this:,})" if then != this else ""
            return (
                f"{name} differs from that of the run in {{folder!r}}{sizes}; "
                "pass the same rows in the same order, or start a new run in another folder"
            )
    return None


def _other_rewards(was: list[dict] | None, now: list[dict] | None) -> str | None:
    """A function whose source could not be had on either side is taken by its name."""
    if was is None or now is None:
        return None
    names = [[function["name"] for function in functions] for functions in (was, now)]
    if names[0] != names[1]:
        return (
            f"reward_funcs is {_listed(names[1])}; expected {_listed(names[0])}, as in the run in {{folder!r}} so far"
        )
    for old, new in zip(was, now, strict=True):
        if old["bound"] != new["bound"]:
            what = f"was bound to {_listed(old['bound'])}, is bound to {_listed(new['bound'])}"
        elif _comparable(old, new) and old["does"] != new["does"]:
            what = "has been changed"
        else:
            continue
        what = what.replace("{", "{{").replace("}", "}}")
        return (
            f"reward_funcs: {new['name']} {what} since the run in {{folder!r}} began; go on with the function as it "
            "was, or start a new run in another folder"
        )
    return None


def _comparable(one: dict, other: dict) -> bool:
    """Both have a source, or bytecode of the same Python."""
    kinds = [function["does"] and function["does"].rsplit(" ", 1)[0] for function in (one, other)]
    return kinds[0] == kinds[1] is not None


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
