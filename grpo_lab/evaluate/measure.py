"""Measure a policy on problems: sample completions, reward them, and compute their metrics or make records of them.

`evaluate_model` does this for the command, and `evaluate` for scripts.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from statistics import fmean as mean
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import write_atomically
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import is_tiny
from grpo_lab.config.precision import autocast
from grpo_lab.evaluate.estimates import pass_at_k, wilson_interval
from grpo_lab.models import load_policy, one_thread_if_tiny
from grpo_lab.models.folders import ModelFiles, find_model
from grpo_lab.models.loading import ModelWithoutWeights, load_config_and_tokenizer
from grpo_lab.rewards import accuracy_reward, format_reward, reward_names
from grpo_lab.rollout import compute_logprobs, encode_prompts, end_token_ids, evaluation_mode
from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
from grpo_lab.rollout.prompts import find_prompt_quirks
from grpo_lab.task_spec import TASK_OPTIONS, TaskSpec, make_task_spec
from grpo_lab.tasks import Rows, has_thinking, in_parts
from grpo_lab.trainer.evaluation import ScoredCompletions, accuracy_and_rewards, sample_and_reward
from grpo_lab.trainer.metrics import frac_equal_rewards, mean_and_std, merge_metrics, tool_metrics
from grpo_lab.trainer.run.inputs import check_reward_arguments
from grpo_lab.trainer.run.reports import completion_record


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
    environment=None,
) -> dict:
    """Sample completions for each problem, and compute accuracy, rewards and other metrics.

    The result is `evaluation_metrics(sample_and_reward(...), ...)`: call these two to get the completions as well.
    `sample_and_reward` is in `grpo_lab.trainer`.

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
        environment: A `TextEnvironment` or a `ToolEnvironment`; None if the policy writes the whole completion.

    Returns:
        The metrics that `evaluation_metrics` describes, ready for JSON.
    """
    scored = sample_and_reward(
        model, tokenizer, rows, reward_funcs, num_generations=num_generations,
        max_completion_length=max_completion_length, temperature=temperature, batch_size=batch_size, seed=seed,
        reward_weights=reward_weights, disable_tqdm=disable_tqdm, environment=environment,
    )  # fmt: skip
    return evaluation_metrics(scored, num_generations, has_reward_weights=reward_weights is not None)


def evaluation_metrics(
    scored: ScoredCompletions, num_generations: int, has_reward_weights: bool = False
) -> dict[str, Any]:
    """Compute accuracy, rewards and other metrics of sampled completions.

    Args:
        scored: The completions of all problems, as `sample_and_reward` returns them.
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
        - frac_reward_zero_std: share of problems whose completions all have the same total reward, as in training;
          None for one completion per problem
        - tools/call_frequency, tools/failure_frequency: if there is an environment
        - mean_length: mean length of the completions in tokens
        - format_rate: share of completions in think/answer form
        - think_rate: share of completions with reasoning between think tags
        - n, num_generations: numbers of problems, and of completions per problem
    """
    G = num_generations
    num_problems = len(scored.texts) // G
    correctness = scored.correctness.nan_to_num(-torch.inf).reshape(num_problems, G)  # -inf: the reward did not apply
    common_metrics = accuracy_and_rewards(scored)
    accuracy = common_metrics["accuracy"]
    num_applied = int((correctness > -torch.inf).any(1).sum())
    metrics = {
        "accuracy": accuracy,
        "accuracy_ci95": None if accuracy is None else wilson_interval(accuracy, num_applied),
        "pass_at_k": None if accuracy is None else _pass_at_k_of_problems(correctness) or None,
        **common_metrics,
        **({"reward": mean_and_std(scored.rewards.total.double())[0]} if has_reward_weights else {}),
        "frac_reward_zero_std": None if G == 1 else frac_equal_rewards(scored.rewards.total.reshape(num_problems, G)),
        "mean_length": scored.lengths.double().mean().item(),
        "format_rate": mean(format_reward(scored.texts)),
        "think_rate": mean(map(has_thinking, scored.texts)),
        **tool_metrics(scored.episodes),
        "n": num_problems,
        "num_generations": G,
    }
    return merge_metrics(metrics, scored.logged_metrics)


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


def sample_records(rows: Rows, scored: ScoredCompletions) -> list[dict]:
    """Make a record of each completion, ready for JSON; a reward that does not apply is None.

    With an environment, "turns" lists the turns and who wrote each, and "prompt" includes the text that `reset`
    appended.

    rows: The problems.
    scored: Their completions, as `sample_and_reward` returns them.
    """
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
    if len(rows) == 0:
        raise InputError("rows", rows, "expected at least one problem", problem="is empty")
    ids = tokenizer("<think>", add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise InputError("tokenizer", ids, "expected one", problem=f"writes '<think>' as {len(ids)} tokens")
    total = 0.0
    for part in in_parts(rows, batch_size):
        prompt_ids, prompt_mask = encode_prompts(tokenizer, [row["prompt"] for row in part])
        think_ids = torch.full((len(part), 1), ids[0], device=model.device)
        prompts = prompt_ids.to(model.device), prompt_mask.to(model.device)
        prompt_of_row = torch.arange(len(part), device=model.device)
        with evaluation_mode(model), autocast(model):
            logp, _ = compute_logprobs(
                model, *prompts, think_ids, torch.ones_like(think_ids).bool(), prompt_of_row, with_entropy=False
            )
        total += logp.double().exp().sum().item()
    return total / len(rows)


def evaluate_model(args: Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Load a model and evaluate it on a task, as the command does; return the metrics with task and split.

    Args:
        args: The command's arguments. Its `max_completion_length` or `batch_size` may be None, for the length of the
            task or the batch size for the size of the model.
        options: The values of `INHERITABLE_OPTION_DEFAULTS`, typed or those of the run that trained the model, and
            the weights of its rewards if they are known.
    """
    files = find_model(args.model)
    has_tiny_model = is_tiny(files.num_parameters)
    # The limits are checked as those of a run are.
    limits = GRPOConfig(
        max_tool_calling_iterations=options["max_tool_calling_iterations"], tool_timeout=options["tool_timeout"]
    )
    tools = load_tools(options["tools"])
    environment_class = load_environment_class(options["environment"])
    task_options = {name: options[name] for name in (*TASK_OPTIONS, "reward_weights") if name in options}
    task_spec = make_task_spec(**task_options, for_bundled_model=files.is_bundled)
    task = task_spec.task
    environment = make_environment(
        task,
        tools=tools,
        environment_factory=environment_class,
        max_tool_calling_iterations=limits.max_tool_calling_iterations,
        tool_timeout=limits.tool_timeout,
    )
    rows = task_spec.rows(args.split, args.n, args.seed)
    print(*task_spec.description_lines(rows), sep="\n")
    if not task.has_held_out:
        print(f"task {task.name}: no problem is held out; these are the ones used in training")
    max_completion_length = args.max_completion_length or task.completion_length(has_tiny_model)
    policy, tokenizer = _load_checked(files, task_spec, rows, environment, max_completion_length)
    reward_weights = options.get("reward_weights")
    scored = sample_and_reward(
        policy, tokenizer, rows, reward_funcs=task_spec.reward_funcs, num_generations=args.num_generations,
        max_completion_length=max_completion_length, temperature=args.temperature, seed=args.seed,
        batch_size=args.batch_size or (512 if has_tiny_model else 64), disable_tqdm=False,
        reward_weights=reward_weights, environment=environment,
    )  # fmt: skip
    metrics = evaluation_metrics(scored, args.num_generations, has_reward_weights=reward_weights is not None)
    records = sample_records(rows, scored)
    if args.output is not None:
        write_atomically(args.output, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        print(f"{len(records):,} completions written to {args.output.as_posix()}")
    for remark in _remarks(metrics, task_spec):
        print(remark)
    return {"task": task.name, "split": args.split} | metrics


def _load_checked(files: ModelFiles, task_spec: TaskSpec, rows: Rows, environment, max_completion_length: int) -> tuple:
    """Load a model and its tokenizer, after checking that they, the rewards and the environment work with the rows.

    Args:
        files: The files of the model.
        task_spec: The task with its rewards.
        rows: The problems.
        environment: The environment that replies to the policy; None if there is none.
        max_completion_length: Maximum number of tokens of a completion.
    """
    has_instances = environment is not None and environment.has_instances
    check_reward_arguments(task_spec.reward_funcs, rows[0], has_instances)
    if environment is not None:
        model_config, tokenizer = load_config_and_tokenizer(files)
        environment.check(ModelWithoutWeights(model_config), tokenizer, rows, max_completion_length, "task")
    policy, tokenizer = load_policy(files)
    one_thread_if_tiny(policy)
    prompts = (row["prompt"] for row in rows)
    for line in find_prompt_quirks(tokenizer, prompts, end_token_ids(policy, tokenizer)).values():
        print(f"prompts: {line}")
    return policy, tokenizer


def _remarks(metrics: dict, task_spec: TaskSpec) -> Iterator[str]:
    """Yield remarks on an evaluation, if training on its rows would have no gradient or there is no accuracy."""
    if metrics["frac_reward_zero_std"] == 1:
        yield (
            "all rewards were equal within each problem, so training on them would have no gradient; take problems "
            "with right and wrong completions, or more of each (num_generations); --output shows them"
        )
    if metrics["accuracy"] is None:
        first = reward_names(task_spec.reward_funcs)[0]
        reason = f"{first} gives no rewards, or values other than 0 to 1 (-1 for wrong)"
        yield f"there is no accuracy: {reason}; see rewards/{first}/mean"
