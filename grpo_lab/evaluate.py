"""Evaluate a policy on problems that it was not trained on: `python -m grpo_lab.evaluate --model DIR` prints JSON.

Modules that need transformers are imported inside the functions, so that --help and errors in options come at once.
"""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_lab.base import Parser, command, shell_line, writable_file
from grpo_lab.base.checks import InputError, check_at_least
from grpo_lab.base.names import SETTINGS_FILE
from grpo_lab.base.parser import write_at_once
from grpo_lab.base.renamed import renamed_argument, warn_renamed
from grpo_lab.base.setting import check_range
from grpo_lab.code_in_files import OPTIONS_THAT_IMPORT, check_no_code_named
from grpo_lab.config import SETTINGS
from grpo_lab.config.arguments import read_settings
from grpo_lab.config.defaults import is_tiny
from grpo_lab.config.precision import autocast
from grpo_lab.rewards import accuracy_reward, format_reward, reward_names
from grpo_lab.task_options import add_reward_options, add_task_options, add_tool_options
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS, TaskSpec, make_task_spec
from grpo_lab.tasks import SPLITS, Rows, has_thinking, in_parts

if TYPE_CHECKING:
    from grpo_lab.trainer.evaluation import ScoredCompletions

# Options that this command takes over from a run.
_OPTION_DEFAULTS = TASK_OPTION_DEFAULTS | dict.fromkeys(OPTIONS_THAT_IMPORT)


@renamed_argument("correct", "reward_funcs")
def evaluate(
    model,
    tokenizer,
    rows: Rows,
    *,
    num_generations: int = 4,
    max_completion_length: int = 64,
    temperature: float = 1.0,
    reward_funcs: Callable | list[Callable] = accuracy_reward,
    batch_size: int = 512,
    seed: int = 1,
    disable_tqdm: bool = True,
    reward_weights: list[float] | None = None,
    samples: list[dict] | None = None,
    environment=None,
) -> dict:
    """Sample completions for each problem, and compute accuracy, rewards and other metrics.

    The result is `evaluation_metrics(sample_problems(...), ...)`: call these two to get the completions as well.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: The problems: dicts with "prompt" and the columns that the reward functions read.
        num_generations: Number of completions per problem.
        max_completion_length: Maximum number of tokens of a completion.
        temperature: Temperature of the sampler, greater than 0.
        reward_funcs: One or several reward functions, called as in training. A completion is right if the first
            function gives 1.
        batch_size: Number of completions that are sampled at a time.
        seed: Seed from which the completions are drawn.
        disable_tqdm: Whether to hide the progress bar.
        reward_weights: The weights of the rewards in the total reward, as in training; an environment's own reward has
            the weight 1. None: the total reward is not reported.
        samples: Deprecated: a list to which the records of `sample_records` are appended.
        environment: A `TextEnvironment` or a `ToolEnvironment`; None if the policy writes the whole completion.

    Returns:
        The metrics that `evaluation_metrics` describes, ready for JSON.
    """
    scored = sample_problems(
        model, tokenizer, rows, num_generations=num_generations, max_completion_length=max_completion_length,
        temperature=temperature, reward_funcs=reward_funcs, batch_size=batch_size, seed=seed, disable_tqdm=disable_tqdm,
        reward_weights=reward_weights, environment=environment,
    )  # fmt: skip
    if samples is not None:
        warn_renamed("the argument samples", "sample_records(rows, sample_problems(...))", stacklevel=3)
        samples += sample_records(rows, scored)
    return evaluation_metrics(scored, num_generations, has_reward_weights=reward_weights is not None)


def sample_problems(
    model,
    tokenizer,
    rows: Rows,
    *,
    num_generations: int = 4,
    max_completion_length: int = 64,
    temperature: float = 1.0,
    reward_funcs: Callable | list[Callable] = accuracy_reward,
    batch_size: int = 512,
    seed: int = 1,
    disable_tqdm: bool = True,
    reward_weights: list[float] | None = None,
    environment=None,
) -> "ScoredCompletions":
    """Sample completions for each problem and reward them; the arguments are those of `evaluate`.

    Returns:
        The completions with their rewards. The completions of a problem are adjacent, in the order of the rows. Without
        `reward_weights`, the total reward is the sum of the rewards.
    """
    if len(rows) == 0:
        raise InputError("rows", rows, "expected at least one problem", found="is empty")
    check_at_least("num_generations", num_generations, 1)
    from grpo_lab.trainer.evaluation import sample_and_reward

    return sample_and_reward(
        model, tokenizer, rows, reward_funcs, num_generations=num_generations,
        max_completion_length=max_completion_length, temperature=temperature, batch_size=batch_size, seed=seed,
        reward_weights=reward_weights, disable_tqdm=disable_tqdm, environment=environment,
    )  # fmt: skip


def evaluation_metrics(
    scored: "ScoredCompletions", num_generations: int, has_reward_weights: bool = False
) -> dict[str, Any]:
    """Compute accuracy, rewards and other metrics of sampled completions.

    Args:
        scored: The completions of all problems, as `sample_problems` returns them.
        num_generations: Number of completions per problem.
        has_reward_weights: Whether the completions were sampled with `reward_weights`; only then is the total reward
            reported.

    Returns:
        A dict of metrics, ready for JSON. The first reward is that of the first function, or of its `without_penalty`
        if it has one. The first three metrics are None if it has values other than 0 to 1, or -1 for wrong answers,
        since 1 then does not mean right.

        - accuracy: share of right completions among those to which the first reward applies
        - accuracy_ci95: Wilson interval of the accuracy with one trial per *problem*, since completions of the same
          problem are not independent
        - pass_at_k: {"1": ..., "2": ..., ...}, each over the problems with at least k completions
        - rewards/<function>/mean: mean reward without weight; None if the function applied to no completion
        - rewards/<function>/frac_none: share of completions to which the function did not apply, if there are any
        - reward: mean of the weighted sum of the rewards, if `reward_weights` are given
        - metrics that reward functions log, under their own names
        - frac_reward_zero_std: share of problems whose completions all have the same first reward; None for
          one completion per problem
        - tools/call_frequency, tools/failure_frequency: if there is an environment
        - mean_length: mean length of the completions in tokens
        - format_rate: share of completions in think/answer form
        - think_rate: share of completions with reasoning between think tags
        - n, num_generations: numbers of problems, and of completions per problem
    """
    from grpo_lab.trainer.evaluation import accuracy_and_rewards
    from grpo_lab.trainer.metrics import mean_and_std, merge_metrics, tool_metrics

    G = num_generations
    num_problems = len(scored.texts) // G
    correctness = scored.correctness.nan_to_num(-torch.inf).reshape(num_problems, G)  # -inf: the reward did not apply
    common_metrics = accuracy_and_rewards(scored)
    accuracy = common_metrics["accuracy"]
    num_applied = int((correctness > -torch.inf).any(1).sum())
    frac_zero_std = (correctness == correctness[:, :1]).all(1).double().mean().item()
    metrics = {
        "accuracy": accuracy,
        "accuracy_ci95": None if accuracy is None else wilson_interval(accuracy, num_applied),
        "pass_at_k": None if accuracy is None else _pass_at_k_of_problems(correctness) or None,
        **common_metrics,
        **({"reward": mean_and_std(scored.rewards.total.double())[0]} if has_reward_weights else {}),
        "frac_reward_zero_std": None if G == 1 else frac_zero_std,
        "mean_length": scored.lengths.double().mean().item(),
        "format_rate": mean(format_reward(scored.texts)),
        "think_rate": mean(map(has_thinking, scored.texts)),
        **tool_metrics(scored.episodes),
        "n": num_problems,
        "num_generations": G,
    }
    return merge_metrics(metrics, scored.logged)


def _pass_at_k_of_problems(correctness: Tensor) -> dict[str, float]:
    """Return the mean of `pass_at_k` for k = 1, 2, 4 ..., over the problems with at least k completions with a reward.

    correctness: Shape (problems, G). A completion is right if its value is at least 1; minus infinity means that the
        reward did not apply.
    """
    num_applied = (correctness > -torch.inf).sum(1).tolist()
    num_right = (correctness >= 1).sum(1).tolist()
    powers = [2**i for i in range(correctness.shape[1].bit_length()) if 2**i <= max(num_applied)]
    return {
        str(k): mean(pass_at_k(n, c, k) for n, c in zip(num_applied, num_right, strict=True) if n >= k) for k in powers
    }


def sample_records(rows: Rows, scored: "ScoredCompletions") -> list[dict]:
    """Make a record of each completion, ready for JSON; a reward that does not apply is None.

    With an environment, "turns" lists the turns and who wrote each, and "prompt" includes the text that `reset`
    appended.

    rows: The problems.
    scored: Their completions, as `sample_problems` returns them.
    """
    from grpo_lab.trainer.reports import completion_record

    G = len(scored.texts) // len(rows)
    total, rewards_per_func, names = scored.rewards
    columns = (rewards_per_func, total, scored.lengths, scored.truncated)
    values = zip(scored.texts, *(column.tolist() for column in columns), strict=True)
    episodes = scored.episodes or []
    turns_by_row = scored.turns or []
    records = []
    for number, (text, row_rewards, reward, length, truncated) in enumerate(values):
        prompt = episodes[number].prompt if episodes else None
        record = completion_record(
            rows[number // G]["prompt"] if prompt is None else prompt,
            text,
            dict(zip(names, row_rewards, strict=True)),
            reward,
            turns=turns_by_row[number] if turns_by_row else None,
            length=length,
            truncated=truncated,
        )
        records.append({"problem": number // G} | record)
    return records


@torch.no_grad()
def thinking_probability(model, tokenizer, rows: Rows, *, batch_size: int = 512) -> float:
    """Compute the exact probability that a completion begins with `<think>`, as the mean over the prompts of the rows.

    The probability is read from the logits after each prompt at temperature 1. Nothing is sampled, so there is no
    sampling variance. For a model whose first token decides whether it reasons, this is the expected share of
    completions with reasoning.
    """
    from grpo_lab.rollout import compute_logprobs, encode_prompts, evaluating

    if len(rows) == 0:
        raise InputError("rows", rows, "expected at least one problem", found="is empty")
    ids = tokenizer("<think>", add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise InputError("tokenizer", ids, "expected one", found=f"writes '<think>' as {len(ids)} tokens")
    total = 0.0
    for part in in_parts(rows, batch_size):
        prompt_ids, prompt_mask = encode_prompts(tokenizer, [row["prompt"] for row in part])
        think_ids = torch.full((len(part), 1), ids[0], device=model.device)
        prompts = prompt_ids.to(model.device), prompt_mask.to(model.device)
        prompt_of_row = torch.arange(len(part), device=model.device)
        with evaluating(model), autocast(model):
            logp, _ = compute_logprobs(
                model, *prompts, think_ids, torch.ones_like(think_ids).bool(), prompt_of_row, with_entropy=False
            )
        total += logp.double().exp().sum().item()
    return total / len(rows)


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""Estimate without bias the chance that at least one of k completions is right, from c right ones among n >= k.

    \mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k} \tag{7.2}

    `math.comb` is exact, and Python divides whole numbers of any size.

    Source: Chen et al. (2021), "Evaluating large language models trained on code", equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise InputError("n, c, k", (n, c, k), "expected 0 <= c <= n and 1 <= k <= n", found=f"are {n}, {c}, {k}")
    estimate = 1 - math.comb(n - c, k) / math.comb(n, k)  # scalar (7.2)
    return estimate


def wilson_interval(share: float, n: int, z: float = 1.959964) -> list[float]:
    r"""Compute the 95% interval of a share seen in n independent trials; it stays within [0, 1].

    c = \frac{p + z^2 / 2n}{1 + z^2 / n} \tag{7.5}
    h = \frac{z}{1 + z^2 / n} \sqrt{\frac{p (1 - p)}{n} + \frac{z^2}{4 n^2}} \tag{7.6}

    z: Quantile of the normal distribution; the default is that of a 95% interval.

    Returns:
        [c - h, c + h].

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    if n < 1 or not 0 <= share <= 1:
        raise InputError("share", share, "expected 0 <= share <= 1 and n >= 1", found=f"is {share} and n is {n}")
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)  # scalar (7.5)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))  # scalar (7.6)
    # The exact interval contains the share; at 0 and 1, rounding could exclude it.
    return [min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)]


@command("grpo_lab.evaluate")
def main(arguments: list[str] | None = None) -> None:
    settings = vars(_parser().parse_args(arguments))
    for option in ("n", "num_generations", "max_completion_length", "batch_size"):
        if settings[option] is not None:
            check_at_least(option, settings[option], 1)
    for option in ("seed", "temperature"):
        check_range(SETTINGS[option], settings[option])
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON object alone
        result = _measure(**settings)
    line = json.dumps(result, allow_nan=False)
    rounded = json.loads(line, parse_float=lambda digits: round(float(digits), 4))
    print(json.dumps(rounded, indent=2 if sys.stdout.isatty() else None))


def _measure(model: str, split: str, n: int | None, seed: int, output: Path | None, **settings) -> dict:
    """Evaluate a model with the options of the command; return the metrics with task and split.

    Args:
        model: The name of the model, as `load_policy` takes it.
        split: The split of the problems, "train" or "test".
        n: Number of problems; None takes the default number.
        seed: Seed from which problems and completions are drawn.
        output: The file for the records of the completions; None writes none.
        settings: The other options of the command.
    """
    from grpo_lab.models import load_policy, one_thread_if_tiny, pick_device
    from grpo_lab.models.folders import count_parameters
    from grpo_lab.models.tool_check import check_tool_environment
    from grpo_lab.rollout.environments.choice import named_or_task_environment
    from grpo_lab.rollout.environments.environment import abilities
    from grpo_lab.rollout.environments.tools.named import load_environment_arguments
    from grpo_lab.rollout.prompting.probe import probe
    from grpo_lab.rollout.prompting.prompts import end_token_ids
    from grpo_lab.trainer.run_checks import check_reward_arguments

    has_tiny_model = is_tiny(count_parameters(model, pick_device().type))
    options = _with_run_settings(model, {option: settings.pop(option) for option in _OPTION_DEFAULTS})
    environment_arguments = load_environment_arguments(*(options.pop(name) for name in OPTIONS_THAT_IMPORT))
    task_spec = make_task_spec(**options, for_tiny_model=has_tiny_model)
    environment = named_or_task_environment(environment_arguments, task_spec.task)
    rows = task_spec.rows(split, n, seed)
    print(*task_spec.description_lines(rows), sep="\n")
    if not task_spec.task.has_held_out:
        print(f"task {task_spec.task.name}: no problem is held out; these are the ones used in training")
    settings["max_completion_length"] = settings["max_completion_length"] or task_spec.task.completion_length(
        has_tiny_model
    )
    settings["batch_size"] = settings["batch_size"] or (512 if has_tiny_model else 64)
    check_reward_arguments(task_spec.reward_funcs, rows[0], abilities(environment).has_instances)
    check_tool_environment(environment, model, rows, "task")
    policy, tokenizer = load_policy(model)
    one_thread_if_tiny(policy)
    for line in probe(tokenizer, (row["prompt"] for row in rows), end_token_ids(policy, tokenizer)).values():
        print(f"prompts: {line}")
    if environment is not None:
        environment.check(policy, tokenizer, rows, settings["max_completion_length"], "task")
        settings["environment"] = environment
    reward_weights = options.get("reward_weights")
    scored = sample_problems(
        policy, tokenizer, rows, reward_funcs=task_spec.reward_funcs, seed=seed, disable_tqdm=False,
        reward_weights=reward_weights, **settings,
    )  # fmt: skip
    metrics = evaluation_metrics(scored, settings["num_generations"], has_reward_weights=reward_weights is not None)
    records = sample_records(rows, scored)
    if output is not None:
        write_at_once(output, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        print(f"{len(records):,} completions written to {output.as_posix()}")
    for line in _remarks(metrics, records, task_spec):
        print(line)
    return {"task": task_spec.task.name, "split": split} | metrics


def _remarks(metrics: dict, records: list[dict], task_spec: TaskSpec) -> Iterator[str]:
    """Yield remarks on an evaluation, if training on its rows would have no gradient or there is no accuracy."""
    distinct_rewards = {(record["problem"], record["reward"]) for record in records}
    if records and metrics["num_generations"] > 1 and len(distinct_rewards) == metrics["n"]:
        yield (
            "all rewards were equal within each problem, so training on them would have no gradient; take problems "
            "with right and wrong completions, or more of each (num_generations); --output shows them"
        )
    if metrics["accuracy"] is None:
        first = reward_names(task_spec.reward_funcs)[0]
        reason = f"{first} gives no rewards, or values other than 0 to 1 (-1 for wrong)"
        yield f"there is no accuracy: {reason}; see rewards/{first}/mean"


def _with_run_settings(model: str, typed: dict) -> dict:
    """Complete the options that were typed with those of the run that trained the model.

    A run is known if the model is its folder or one of its checkpoints. Its options are taken unless another task was
    typed, and the weights of its rewards unless other rewards were typed.
    """
    explicit = {option: value for option, value in typed.items() if value is not None}
    folder = Path(model).parent if Path(model).name.startswith("checkpoint-") else Path(model)
    run_settings = read_settings(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else {}
    if explicit.get("task") not in (None, run_settings.get("task")):
        run_settings = {}
    if explicit.keys() & {"prompt_column", "prompt_template"}:  # either of them replaces both options of the run
        run_settings = run_settings | {"prompt_column": None, "prompt_template": None}
    inherited = {}
    for option, default in _OPTION_DEFAULTS.items():
        if option not in explicit and run_settings.get(option) not in (None, default):
            inherited[option] = run_settings[option]
    check_no_code_named(inherited, folder / SETTINGS_FILE)
    if inherited:
        words = []
        for option, value in inherited.items():
            words += [f"--{option}", *(value if isinstance(value, list) else [value])]
        print(f"as in the run of {folder.as_posix()!r}: {shell_line(words)}")
    options = _OPTION_DEFAULTS | inherited | explicit
    reward_funcs = run_settings.get("reward_funcs")
    has_rewards_of_run = explicit.get("reward_funcs", reward_funcs) == reward_funcs
    if has_rewards_of_run and run_settings.get("reward_weights") is not None:
        options["reward_weights"] = run_settings["reward_weights"]
    return options


def _parser() -> Parser:
    description = (
        "Sample completions of problems that the training does not see, and count the right ones. "
        f"{', '.join(TASK_OPTION_DEFAULTS)} and the weights of the rewards default to those of the run, if the "
        "model is its folder."
    )
    parser = Parser(prog="python -m grpo_lab.evaluate", description=description)
    parser.add_argument("--model", required=True, help='a folder, a hub id, "tiny", "smollm2", "qwen" or "auto"')
    add_task_options(parser)
    add_reward_options(parser)
    add_tool_options(parser)
    add = parser.add_argument
    add("--split", choices=SPLITS, default="test", help='"train" for those of the training (default test)')
    add("--n", type=int, help="number of problems (default: 1000, or as many as there are)")
    add("--seed", type=int, default=1, help="chooses the problems and the samples (default 1)")
    add("--num_generations", type=int, default=4, help="completions per problem (default 4)")
    add("--max_completion_length", type=int, help="limit in tokens (default: the task's)")
    add("--batch_size", type=int, help="completions at a time (default: 512 of a tiny model, else 64)")
    add("--temperature", type=float, default=1.0, help="of the sampler (default 1.0)")
    output_help = "write completions with prompts, rewards and the turns of episodes, one JSON object per line"
    add("--output", type=writable_file, metavar="FILE", help=output_help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
