"""`python -m grpo_lab.export verl DIR --model M --task T ...`: a run, written as verl 0.9.1 takes it.

It takes the options of `grpo_lab.train`, and writes what that run would need on verl: the problems (train.parquet,
test.parquet), the reward (reward.py) and the command with all its settings (run.sh). It starts nothing, and nobody of
this project has run what it writes: verl needs cards and vLLM.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from grpo_lab.commands import Parser, command, writable_folder
from grpo_lab.config import GRPOConfig
from grpo_lab.train import HELD_OUT, plan_run, read_options

VERL = "0.9.1"
NEVER = 1e9  # a bound of verl's dual clip, which cannot be switched off, that no ratio reaches
AVERAGES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
SEQUENCE_AVERAGES = {"grpo": "seq-mean-token-mean", "luspo": "seq-mean-token-sum"}
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine"}
# Settings that `overrides` passes on or translates; those that concern only what one sees or keeps are left out.
PASSED = (
    *("output_dir", "seed", "max_steps", "save_steps", "report_to", "eval_steps", "num_generations_eval"),
    *("num_generations", "generation_batch_size", "max_completion_length", "temperature", "top_k", "top_p"),
    *("reward_weights", "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta"),
    *("sapo_temperature_pos", "sapo_temperature_neg", "beta", "kl_estimator", "entropy_coef", "scale_rewards"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2"),
    *("max_grad_norm", "num_iterations", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "precision", "bf16"),
)
LEFT_OUT = ("save_total_limit", "disable_tqdm", "logging_steps", "num_completions_to_print")
LEFT_OUT += ("per_device_eval_batch_size", "max_nonfinite_steps", "log_kl", "log_completions")
RUN = """\
#!/usr/bin/env bash
# Written by grpo-lab for verl {version}, and not run. What follows this command's name is put last, and wins:
#   bash run.sh trainer.n_gpus_per_node=8
# Not quite the same there: with a warm-up and a constant rate, verl's first step has the rate 0; its k3 is cut off at
# 10; weights are float32, products bfloat16; vLLM samples, whose probabilities differ a little from the trainer's.
python3 -m verl.trainer.main_ppo \\
{settings}
    "$@"
"""
REWARD = '''\
"""What grpo-lab pays, as verl asks for it. It needs grpo-lab (and this folder of rewards) where verl runs."""

from grpo_lab.export import verl_reward

compute_score = verl_reward({names!r}, {weights!r})
'''


@command("grpo_lab.export")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m grpo_lab.export", description="Write a run as verl takes it; nothing is started.")
    parser.add_argument("engine", choices=("verl",), help=f"for verl {VERL}")
    parser.add_argument("folder", type=writable_folder, metavar="DIR", help="a new folder")
    parser.epilog = "Every other option is one of `grpo-lab train`, which says what it means."
    about, options = parser.parse_known_args(arguments)
    folder = about.folder.resolve()
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"folder is {str(about.folder)!r}, which has files already; expected a new one")
    export(read_options([*options, "--output_dir", str(folder)]), folder)


def export(given: dict, folder: Path) -> None:
    """Write train.parquet, test.parquet, reward.py and run.sh; `given` as `grpo_lab.train.read_options` returns it.

    Raises:
        ValueError: for a setting that verl lacks, and prompts that are no messages.
        ImportError: if datasets, which writes the parquet files, is not installed.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ImportError('datasets is not installed; pip install "grpo-lab[engines]"') from error
    from transformers import AutoTokenizer

    from grpo_lab.models.folders import count_parameters, usable_folder
    from grpo_lab.rewards.task_spec import for_template
    from grpo_lab.rollout import encode_prompts
    from grpo_lab.train.engines.options import OURS, take_engine

    if (engine := take_engine(given).name) != OURS:
        raise ValueError(f"engine is {engine!r}; expected none: what is written is for verl")
    model = usable_folder(given["model"])[0].resolve()
    choice, config, _ = plan_run(given, count_parameters(given["model"]), "cuda")
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    rows = {"train": choice.rows("train", None, config.seed), "test": choice.rows("test", None, seed=1)[:HELD_OUT]}
    rows = {split: for_template(some, tokenizer) for split, some in rows.items()}
    longest = encode_prompts(tokenizer, [row["prompt"] for some in rows.values() for row in some])[0].shape[1]
    settings = overrides(config, model, folder, longest)
    folder.mkdir(parents=True, exist_ok=True)
    for split, some in rows.items():
        Dataset.from_list(verl_rows(some, choice.task.name, split)).to_parquet(folder / f"{split}.parquet")
    lines = (f"    {shlex.quote(f'{name}={_in_yaml(value)}')} \\" for name, value in settings.items())
    script = RUN.format(version=VERL, settings="\n".join(lines))
    (folder / "run.sh").write_text(script, encoding="utf-8", newline="\n")
    reward = REWARD.format(names=list(choice.names), weights=choice.weights)
    (folder / "reward.py").write_text(reward, encoding="utf-8", newline="\n")
    print(f"written to {folder}, and not run: train.parquet, test.parquet, reward.py, run.sh for verl {VERL}")


def verl_rows(rows: list[dict], task: str, split: str) -> list[dict]:
    """Problems in the columns that verl reads. All of ours travel as JSON, so that Arrow cannot change their types."""
    made = []
    for index, row in enumerate(rows):
        if isinstance(row["prompt"], str):
            raise ValueError("chat_template: the prompts are texts; expected messages, which verl's templates take")
        columns = {name: value for name, value in row.items() if name != "prompt"}
        made.append(
            {
                "data_source": task,
                "prompt": row["prompt"],
                "reward_model": {"style": "rule", "ground_truth": str(row.get("answer", ""))},
                "extra_info": {"split": split, "index": index, "columns": json.dumps(columns, ensure_ascii=False)},
            }
        )
    return made


def verl_reward(names: list[str], weights: list[float] | None) -> Callable:
    """The weighted sum of these rewards as a `compute_score` of verl, which asks for one answer at a time.

    verl hands over the answer's text without its special tokens, and no token ids. "score" is what it trains on; the
    rewards one by one stand beside it under their names.

    Raises:
        ValueError: when it is called, where every reward returned None: verl cannot leave an answer out.
    """
    from grpo_lab.rewards import score_completions
    from grpo_lab.rewards.named import find_rewards

    functions = find_rewards(names)

    def compute_score(data_source, solution_str, ground_truth, extra_info, **_) -> dict[str, float]:
        answer = [[{"role": "assistant", "content": solution_str}]]
        columns = {name: [value] for name, value in json.loads(extra_info["columns"]).items()}
        rewards, each, found = score_completions(functions, [[]], answer, [[]], columns, weights)
        if rewards.isnan().any():
            raise ValueError(f"reward_funcs: each of {', '.join(names)} returned None; verl needs a number")
        return {"score": rewards.item()} | dict(zip(found, each[0].tolist(), strict=True))

    return compute_score


def overrides(config: GRPOConfig, model: Path, folder: Path, longest_prompt: int) -> dict[str, object]:
    """The run in verl's settings: name -> value.

    Raises:
        ValueError: for the first setting that verl lacks, or that it would take in another meaning.
    """
    c = config
    for field in fields(c):
        if field.name not in PASSED + LEFT_OUT and getattr(c, field.name) != field.default:
            raise ValueError(f"{field.name} is {getattr(c, field.name)!r}, which verl {VERL} does not have")
    _check_passed(c)
    data = {
        "train_files": folder / "train.parquet",
        "val_files": folder / "test.parquet",
        "train_batch_size": c.prompts_per_step,
        "max_prompt_length": longest_prompt,
        "max_response_length": c.max_completion_length,
        "seed": c.seed,
    }
    rows = {"log_prob_micro_batch_size_per_gpu": c.per_device_train_batch_size}
    sampling = {"temperature": c.temperature, "top_k": c.top_k or -1, "top_p": c.top_p}
    evaluated = {"n": c.num_generations_eval or c.num_generations, "do_sample": True, **sampling}
    rollout = {"name": "vllm", "n": c.num_generations, "tensor_model_parallel_size": 1, "seed": c.seed, **sampling}
    rollout |= rows | {f"val_kwargs.{name}": value for name, value in evaluated.items()}
    trainer = {
        "total_training_steps": c.max_steps,
        "total_epochs": c.max_steps,  # more than enough: an epoch has at least one step
        "save_freq": c.save_steps or -1,
        "test_freq": c.eval_steps or -1,
        "val_before_train": c.eval_steps is not None,
        "logger": ["console"] + ([] if c.report_to == "none" else [c.report_to]),
        "project_name": "grpo_lab",
        "experiment_name": folder.name,
        "default_local_dir": folder / "checkpoints",
        "n_gpus_per_node": 1,
        "nnodes": 1,
    }
    groups = {
        "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": c.scale_rewards == "group"},
        "data": data,
        "actor_rollout_ref.model": {"path": model, "enable_gradient_checkpointing": c.gradient_checkpointing},
        "actor_rollout_ref.actor": _objective(c) | _updates(c),
        "actor_rollout_ref.rollout": rollout,
        "actor_rollout_ref.ref": rows,
        "reward.custom_reward_function": {"path": folder / "reward.py", "name": "compute_score"},
        "trainer": trainer,
    }
    return {f"{group}.{name}": value for group, some in groups.items() for name, value in some.items()}


def _check_passed(c: GRPOConfig) -> None:
    """The settings that verl has, with values that it does not."""
    allowed = {
        "kl_estimator": (c.beta == 0 or c.kl_estimator in ESTIMATORS, ESTIMATORS),
        "scale_rewards": (c.scale_rewards != "batch", ("group", "none")),
        "lr_scheduler_type": (c.lr_scheduler_type in SCHEDULES, SCHEDULES),
        "precision": (c.precision in (None, "fp32-master"), ("fp32-master",)),
        "max_grad_norm": (c.max_grad_norm < math.inf, ("a finite number",)),
        "max_steps": (c.max_steps > 0, ("at least 1",)),
        "per_device_train_batch_size": (
            c.update_batch_size % c.num_generations == 0,
            (f"an update of whole groups, a multiple of num_generations {c.num_generations}",),
        ),
    }
    for name, (is_allowed, expected) in allowed.items():
        if not is_allowed:
            raise ValueError(f"{name} is {getattr(c, name)!r}; expected {', '.join(expected)}, as verl {VERL} has it")


def _objective(c: GRPOConfig) -> dict[str, object]:
    loss, level = c.loss_type, c.importance_sampling_level
    high = c.epsilon if c.epsilon_high is None else c.epsilon_high
    edges = {"clip_ratio_low": c.epsilon, "clip_ratio_high": high}
    if level == "token" and loss in AVERAGES:
        made = {"policy_loss.loss_mode": "vanilla", "loss_agg_mode": AVERAGES[loss], "clip_ratio_c": c.delta or NEVER}
        made |= edges | ({"loss_scale_factor": c.max_completion_length} if loss == "dr_grpo" else {})
    elif c.delta is not None:
        raise ValueError(f"delta is {c.delta}; expected none: verl {VERL} has it for grpo, dapo and dr_grpo alone")
    elif level == "sequence" and loss in SEQUENCE_AVERAGES:  # verl's gspo takes any average, and its default is another
        made = {"policy_loss.loss_mode": "gspo", "loss_agg_mode": SEQUENCE_AVERAGES[loss]} | edges
    elif (level, loss) == ("token", "cispo"):  # verl bounds the weight from below, too, and counts both edges from 1
        made = {"policy_loss.loss_mode": "cispo", "loss_agg_mode": "token-mean"}
        made |= {"clip_ratio_low": 1.0, "clip_ratio_high": high - 1}
    elif (level, loss) == ("token", "sapo"):  # its loss is averaged so in any case, a KL term only if told
        made = {"policy_loss.loss_mode": "sapo", "loss_agg_mode": "seq-mean-token-mean"}
        made |= {"tau_pos": c.sapo_temperature_pos, "tau_neg": c.sapo_temperature_neg}
    else:
        losses = "grpo, dapo, dr_grpo, cispo, sapo by token, grpo, luspo by sequence"
        raise ValueError(f"loss_type is {loss!r} by {level}; expected one that verl {VERL} has: {losses}")
    kl = {"kl_loss_coef": c.beta, "kl_loss_type": ESTIMATORS[c.kl_estimator]} if c.beta else {}
    return made | {"use_kl_loss": c.beta > 0} | kl | {"entropy_coeff": c.entropy_coef}


def _updates(c: GRPOConfig) -> dict[str, object]:
    optim = {
        "lr": c.learning_rate,
        "lr_scheduler_type": SCHEDULES[c.lr_scheduler_type],
        "lr_warmup_steps": 0 if c.lr_scheduler_type == "constant" else c.warmup_steps,
        "zero_indexed_step": False,  # of the cosine: the first step has a rate above 0, as here
        "weight_decay": c.weight_decay,
        "betas": [c.adam_beta1, c.adam_beta2],
        "clip_grad": c.max_grad_norm,
    }
    return {
        "ppo_mini_batch_size": c.update_batch_size // c.num_generations,  # verl counts prompts
        "ppo_micro_batch_size_per_gpu": c.per_device_train_batch_size,
        "ppo_epochs": c.num_iterations,
        "data_loader_seed": c.seed,
        **{f"optim.{name}": value for name, value in optim.items()},
    }


def _in_yaml(value) -> str:
    """As hydra reads it on a command line."""
    return json.dumps(value) if isinstance(value, bool | int | float | list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
