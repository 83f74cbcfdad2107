"""Mistakes in circulation as single changes of the live source: to be planted, shown as a diff, and taken out again.

    with planted("off-by-one"):
        history = train(...)  # makes the mistake
    show_bugs({"C": "off-by-one"})

Notebook 09 hunts them; the test suite has to kill each of them as a mutant. Whoever imported a function holds the
function object, so its code is exchanged inside the object, and its decorators stay.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import CodeType, FunctionType

from grpo_lab.commands.display import say


@dataclass(frozen=True)
class Bug:
    """One mistake: in `function` of `module`, `before` stands exactly once in the file, and `after` takes its place."""

    module: str
    function: str
    before: str
    after: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The function with the mistake, inside the `with`."""
        function = self._function()
        right, function.__code__ = function.__code__, self._wrong_code()
        try:
            yield
        finally:
            function.__code__ = right

    def diff(self) -> str:
        """The lines that differ, without their indentation."""
        old = inspect.getsource(self._function())
        lines = difflib.unified_diff(old.splitlines(), old.replace(self.before, self.after).splitlines(), n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in changed)

    def _function(self) -> FunctionType:
        return inspect.unwrap(pkgutil.resolve_name(f"{self.module}:{self.function}"))

    def _wrong_code(self) -> CodeType:
        module = importlib.import_module(self.module)
        source = inspect.getsource(module)
        if source.count(self.before) != 1:
            raise ValueError(f"{self.module} has {self.before!r} {source.count(self.before)} times; expected it once")
        compiled = compile(source.replace(self.before, self.after), module.__file__, "exec", dont_inherit=True)
        return next(code for code in _codes(compiled) if code.co_qualname == self.function)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


# By name, most of them in ERRATA's words: where it is, what stands there, and what stands there instead.
BUGS = {
    "temperature-mismatch": Bug(
        "grpo_lab.trainer.logprobs", "_logprobs_together", "temperature=config.temperature,", "temperature=1.0,"
    ),
    "retokenised": Bug(
        "grpo_lab.rollout.sample",
        "sample_completions",
        "completion_ids=completion_ids,",
        """completion_ids=tokenizer(
            texts, padding="max_length", padding_side="right", max_length=mask.shape[1], truncation=True,
            add_special_tokens=False, return_tensors="pt",
        ).input_ids,""",
    ),
    "off-by-one": Bug(
        "grpo_lab.rollout.recompute",
        "_hidden_shared",
        "return torch.cat([last, rest.last_hidden_state], dim=1)",
        "return torch.cat([rest.last_hidden_state, rest.last_hidden_state[:, -1:]], dim=1)",
    ),
    "microbatch-mean": Bug(
        "grpo_lab.objective.loss",
        "microbatch_loss",
        "policy_loss(logp, advantages, mask, loss_type=loss_type, num_items=num_items, **settings)",
        "policy_loss(logp, advantages, mask, loss_type=loss_type, num_items=mask.sum(), **settings)",
    ),
    "group-mixed": Bug(
        "grpo_lab.trainer.experience",
        "compute_advantages",
        "by_group = rewards.view(-1, config.num_generations)",
        "by_group = rewards.view(config.num_generations, -1).T.contiguous()",
    ),
    "no-centre": Bug(
        "grpo_lab.advantages",
        "group_advantages",
        'centred = from_first - reduce(from_first, "P G -> P 1", "mean")',
        "centred = rewards",
    ),
    "eos-trimmed": Bug(
        "grpo_lab.logprobs",
        "completion_mask",
        "ends_before = is_end.cumsum(-1) - is_end",
        "ends_before = is_end.cumsum(-1)",
    ),
    "k1-as-loss": Bug("grpo_lab.kl", "kl_estimate", 'if estimator == "k1":', 'if estimator in ("k1", "k3"):'),
    "ratio-quotient": Bug(
        "grpo_lab.objective.surrogates",
        "importance_ratio",
        "ratio = log_ratio.exp()",
        "ratio = logp / old_logp.detach()",
    ),
    "old-not-frozen": Bug(
        "grpo_lab.trainer.loop",
        "update",
        "replace(experience, old_logp=old_logp)",
        "replace(experience, old_logp=None)",
    ),
    "ref-not-frozen": Bug(
        "grpo_lab.models.frozen",
        "frozen_copy",
        "return copy.deepcopy(model).requires_grad_(False).eval()",
        "return model",
    ),
    "pure-bf16-adamw": Bug(
        "grpo_lab.trainer.optim_8bit",
        "EightBitAdamW.__init__",
        "bf16_stochastic_round=stochastic_rounding",
        "bf16_stochastic_round=False",
    ),
    "answers-mixed": Bug(
        "grpo_lab.trainer.experience",
        "_as_reward_functions_see_it",
        "rows = [rows[prompt] for prompt in rollout.prompt_of_row.tolist()]",
        "rows = [rows[row % len(rows)] for row in range(len(rollout.texts))]",
    ),
}


def planted(name: str) -> AbstractContextManager:
    """The mistake of this name inside the `with`; "healthy" is none."""
    return nullcontext() if name == "healthy" else BUGS[name].planted()


def show_bugs(runs: Mapping[str, str]) -> None:
    """Of each run's mistake the lines that differ from the live source; the first stands open, a click opens others."""
    for place, (run, name) in enumerate(runs.items()):
        bug = BUGS[name]
        where = f"{bug.module}.{bug.function}"
        head = f"<details{'' if place else ' open'}><summary>Run {run}: {name}, in <code>{where}</code></summary>"
        say(f"{head}\n\n```diff\n{bug.diff()}\n```\n\n</details>", f"Run {run}: {name}, in {where}\n{bug.diff()}")
