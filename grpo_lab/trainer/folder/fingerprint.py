"""What a run was begun with, in a few characters each: model, data set, reward functions, tokenizer.

Whoever resumes with another one gets other numbers than the run would have had. So each is compared by what it
computes with, not by where it lies: a model saved and loaded again is the same model.
"""

import ast
import dis
import functools
import hashlib
import inspect
import json
import platform
import re
import textwrap
from collections.abc import Callable

import torch

from grpo_lab.rewards.scoring import listed
from grpo_lab.tasks import Rows

_PLAIN = (int, float, str, bool, bytes, type(None))


def fingerprints(
    model, tokenizer, dataset: Rows, reward_funcs: Callable | list[Callable] | None, eval_dataset: Rows | None = None
) -> dict:
    """All of them, ready for JSON; "reward_funcs" is None where the functions are not known."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {
        "model": of_weights(model),
        "trained_parameters": [len(trained), _hash(trained)],
        "dataset": [len(dataset), of_rows(dataset)],
        "eval_dataset": None if eval_dataset is None else [len(eval_dataset), of_rows(eval_dataset)],
        "tokenizer": of_tokenizer(tokenizer),
        "reward_funcs": None if reward_funcs is None else [of_function(function) for function in listed(reward_funcs)],
    }


def of_weights(model) -> str:
    """Of all weights, bit for bit, with their names, shapes and types."""
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()


def of_rows(dataset: Rows) -> str:
    total = hashlib.sha256()
    for index in range(len(dataset)):
        total.update(json.dumps(dataset[index], sort_keys=True, default=_in_words).encode() + b"\n")
    return total.hexdigest()


def of_tokenizer(tokenizer) -> str:
    """Of its vocabulary, merges, template and end: what decides which tokens a prompt becomes, and where one ends."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return _hash([sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends])


def of_function(function: Callable) -> dict:
    """Name, arguments that are bound to it, and what it does: its source without layout, or its bytecode.

    "does" is None where neither can be had. What an object gathers while it is called (a counter, a cache) counts for
    nothing.
    """
    bound = []
    while isinstance(function, functools.partial):
        bound += [_in_words(one) for one in (*function.args, *sorted(function.keywords.items()))]
        function = function.func
    function = inspect.unwrap(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}.{named.__qualname__}"
    return {"name": name, "bound": bound + _captured(function), "does": _what_it_does(named)}


def _captured(function) -> list[str]:
    """The plain values that a function took along from where it was made, unless it changes them itself."""
    code = getattr(function, "__code__", None)
    if code is None or not function.__closure__:
        return []
    changed = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_DEREF"}
    values = zip(code.co_freevars, function.__closure__, strict=True)
    return [f"{name}={_in_words(cell.cell_contents)}" for name, cell in values if name not in changed and _plain(cell)]


def _what_it_does(named) -> str | None:
    if getattr(named, "__name__", "") != "<lambda>":  # the source of a lambda is the line around it
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(named)))
        except (OSError, TypeError, SyntaxError):
            pass
        else:
            return "source " + _hash(ast.dump(_without_docstrings(tree)))
    code = getattr(named, "__code__", None)
    return code and f"bytecode of Python {platform.python_version()} {_hash(_instructions(code))}"


def _instructions(code) -> list:
    constants = [_instructions(one) if inspect.iscode(one) else _in_words(one) for one in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _plain(cell) -> bool:
    try:
        return isinstance(cell.cell_contents, _PLAIN)
    except ValueError:  # empty still
        return False


def _in_words(value) -> str:
    """As it prints, without what differs from one process to the next: addresses, and the order of sets."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_in_words, value)))}}}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    return text if len(text) < 200 else f"{text[:100]}... {_hash(text)}"


def _hash(value) -> str:
    return hashlib.sha256(json.dumps(value, default=_in_words).encode()).hexdigest()
