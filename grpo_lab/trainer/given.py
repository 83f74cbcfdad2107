"""What a run is given: checked before its first step, and compared with what it began with when it goes on.

A run with other ingredients would get other numbers. Model, data and tokenizer are compared by content, wherever they
lie; a reward function by the file that defines it and by what it was made with. What cannot be compared is refused on
resuming, unless it says what it is.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import torch

from grpo_lab.commands.checks import InputError, InputTypeError
from grpo_lab.config import GRPOConfig
from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.rewards import reward_names
from grpo_lab.rewards.made_with import of_function
from grpo_lab.rewards.scoring import check_signatures, check_weights, listed
from grpo_lab.rollout.probe import probe
from grpo_lab.rollout.prompt_checks import check_prompts
from grpo_lab.rollout.prompts import end_token_ids
from grpo_lab.tasks import Rows

UNKNOWN = "what cannot be compared"


def check_given(
    model, tokenizer, dataset: Rows, config: GRPOConfig, reward_funcs: Callable | list | None, eval_dataset: Rows | None
) -> None:
    """Raise InputError for the first argument of `Run` that is of another kind, or does not fit the others."""
    check_kinds(model, tokenizer, config)
    given = {"dataset": dataset} | ({} if eval_dataset is None else {"eval_dataset": eval_dataset})
    for name, rows in given.items():
        check_dataset(rows, name)
    if reward_funcs is not None:  # what `score_completions` would say after the first rollout
        check_weights(config.reward_weights, reward_names(reward_funcs))
        check_signatures(reward_funcs, dataset[0])
    if (config.eval_steps is None) != (eval_dataset is None):
        missing = ["eval_steps", "eval_dataset"][:: 1 if config.eval_steps is None else -1]
        raise InputError(missing[0], None, f"expected one where {missing[1]} is given")
    if eval_dataset is not None and (lacking := sorted(dataset[0].keys() - eval_dataset[0].keys())):
        wanted = f"expected those of dataset, with {', '.join(lacking)}"
        raise InputError("eval_dataset", eval_dataset, wanted, found=f"has the columns {sorted(eval_dataset[0])}")
    ensure_checked(model)
    for name, rows in given.items():
        prompts = (rows[index]["prompt"] for index in range(len(rows)))
        check_prompts(model, tokenizer, prompts, config.max_completion_length, name)
    prompts = (rows[index]["prompt"] for rows in given.values() for index in range(len(rows)))
    for line in probe(tokenizer, prompts, end_token_ids(model, tokenizer)).values():
        print(f"prompts: {line}")


def check_kinds(model, tokenizer, config) -> None:
    """Raise InputTypeError for what is no model, tokenizer or configuration, such as two that changed places."""
    has_head = getattr(model, "get_output_embeddings", lambda: None)() is not None
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "eos_token_id")
    for name, value, fits, expected in (
        ("config", config, isinstance(config, GRPOConfig), "a GRPOConfig"),
        ("model", model, has_head, "a causal language model, as load_policy returns it"),
        ("tokenizer", tokenizer, is_tokenizer, "the model's, as load_policy returns it"),
    ):
        if not fits:
            raise InputTypeError(name, value, f"expected {expected}", found=f"is of type {type(value).__name__}")


def check_dataset(dataset: Rows, name: str = "dataset") -> None:
    """Every row is a dict with a "prompt", and all have the same columns."""
    try:
        rows = [dataset[index] for index in range(len(dataset))]
    except (KeyError, TypeError) as error:  # a generator, a dict, a DatasetDict, a DataFrame
        wanted = "expected a list of dicts or a datasets.Dataset (of one split)"
        raise InputTypeError(name, dataset, wanted, found=f"is a {type(dataset).__name__}") from error
    if not rows:
        raise InputError(name, rows, "expected at least one row", found="is empty")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputTypeError(f"{name} row {index}", row, "expected a dict with a 'prompt'", found=f"is {row!r:.60}")
        if "prompt" not in row or row.keys() != rows[0].keys():
            wanted = f"those of row 0, {sorted(rows[0])}" if "prompt" in row else "'prompt' among them"
            found = f"has the columns {sorted(row)}"
            raise InputTypeError(f"{name} row {index}", row, f"expected {wanted}", found=found)


def plain_numbers(metrics: dict) -> dict:
    """The metrics of a step as numbers of Python; raises for what is none, for it could not be written to a file."""
    plain = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise InputTypeError("metrics", name, "expected texts, such as 'think_rate'", found=f"has the key {name!r}")
        plain[name] = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(plain[name], int | float | str | None):
            found = f"is {value!r:.60}"
            raise InputTypeError(f"metrics[{name!r}]", value, "expected a number, or None", found=found)
    if lacking := [name for name in ("reward", "num_tokens", "completions/mean_length") if name not in plain]:
        wanted = "expected those of `collect` among them"
        raise InputError("metrics", metrics, wanted, found=f"has no {lacking[0]!r}")
    return plain


def fingerprints(model, tokenizer, dataset: Rows, reward_funcs, eval_dataset: Rows | None = None) -> dict:
    """What a run begins with, ready for JSON: of each ingredient what is compared, by name. None is not compared."""
    return {
        "model": of_model(model),
        "dataset": _of_rows(dataset),
        "eval_dataset": None if eval_dataset is None else _of_rows(eval_dataset),
        "tokenizer": _of_tokenizer(tokenizer),
        "reward_funcs": None if reward_funcs is None else _of_rewards(listed(reward_funcs)),
        "engine": {"engine": "grpo_lab"},
    }


def check_same(began: dict, prints: dict, folder: str) -> None:
    """Raise InputError for the first ingredient that would lead to other numbers than those of the run in the folder.

    Evaluations may begin, or stop, and a loop of one's own has no rewards to compare.
    """
    for name, new in prints.items():
        if new is None or (old := began[name]) is None:
            continue
        if unknown := new.get(UNKNOWN):
            raise InputError(
                f"{name} holds {unknown[0]}, which cannot be compared with what the run began with; give it, from the "
                "start on, a text as its attribute `fingerprint`, or start a new run in another folder"
            )
        if changed := [key for key in old | new if old.get(key) != new.get(key)]:
            how = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed)
            wanted = "take what it began with, or start a new run in another folder"
            raise InputError(f"{name} differs from that of the run in {folder!r} ({how}); {wanted}")


def of_model(model) -> dict:
    """Of all weights, bit for bit, with their names, shapes and types, and of which of them are trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = hashlib.sha256("\n".join(trained).encode())
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return {"trained parameters": len(trained), "weights": total.hexdigest()[:16]}


def _of_rows(dataset: Rows) -> dict:
    return {"rows": len(dataset), "contents": _hash([_hash(dataset[index]) for index in range(len(dataset))])}


def _of_tokenizer(tokenizer) -> dict:
    """Of its vocabulary, merges, template and end: what decides which tokens a prompt becomes, and where one ends."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    parts = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends]
    return {"tokens": len(tokenizer), "contents": _hash(parts)}


def _of_rewards(functions: list) -> dict:
    """Their names in order; what each was made with; the files that define them; what of them cannot be compared."""
    found = [of_function(function) for function in functions]
    prints = {"functions": [one["name"] for one in found], UNKNOWN: [held for one in found for held in one["unknown"]]}
    for place, one in enumerate(found, 1):
        prints[f"{one['name']}, number {place}, made with"] = one["bound"]
        prints |= {file: sha256[:16] for file, sha256 in one["files"].items()}
    return prints


def _hash(value: Any) -> str:
    """Without addresses, which differ from one process to the next."""
    text = json.dumps(value, sort_keys=True, default=lambda other: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(other)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
