"""Evaluation: its counts and intervals, and that the command prints a single JSON object to stdout."""

import dataclasses
import itertools
import json
import math
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

from grpo_lab import evaluate as evaluate_module
from grpo_lab.base.checks import RunError
from grpo_lab.evaluate import (
    evaluate,
    evaluation_metrics,
    main,
    pass_at_k,
    sample_problems,
    sample_records,
    thinking_probability,
    wilson_interval,
)
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward, reward_names
from grpo_lab.rewards.rules import think_rate
from grpo_lab.rollout import sample_completions
from grpo_lab.rollout.environments import environment
from grpo_lab.tasks import addition_problems, addition_split, find_task, table
from grpo_lab.train import main as train_main
from tests.support.refused import refused
from tests.support.small_policy import ROWS, make_policy


def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one():
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_interval_ends_solve_wilsons_equation():
    """Wilson's definition: p with (right/n - p)^2 = z^2 p (1 - p) / n."""
    for right, n in ((0, 5), (1, 1), (3, 10), (50, 100), (999, 1000), (7, 7)):
        low, high = wilson_interval(right / n, n)
        for end in (low, high):
            assert (right / n - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / n, abs=1e-12)
        assert 0 <= low <= right / n <= high <= 1 and low < high


def test_what_cannot_be_is_refused():
    for n, c, k in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)):
        with pytest.raises(ValueError, match=f"n, c, k are {n}, {c}, {k}; expected"):
            pass_at_k(n, c, k)
    for share, n in ((0.5, 0), (-0.1, 5), (1.1, 5), (math.nan, 5)):
        with pytest.raises(ValueError, match=f"share is {share} and n is {n}; expected"):
            wilson_interval(share, n)


# Two problems with four completions each, and the number of right completions.
TEXTS = {
    "a": ["<think>1</think><answer>2</answer>", "<answer>2</answer>", "2", "<think> </think><answer>3</answer>"],
    "f": ["<answer>9</answer>", "", "<think>x</think><answer>1</answer>", "<think>x</think>"],
}
PLANTED_ROWS = [{"prompt": "a", "answer": "2"}, {"prompt": "f", "answer": "1"}]


def plant(monkeypatch, texts=TEXTS):
    def planted(model, tokenizer, prompts, num_generations, *arguments, **keywords):
        rollout = sample_completions(model, tokenizer, prompts, num_generations, *arguments, **keywords)
        planted_texts = [text for prompt in prompts for text in texts[prompt][:num_generations]]
        return dataclasses.replace(rollout, texts=planted_texts)

    monkeypatch.setattr(environment, "sample_completions", planted)


def test_every_count(monkeypatch):
    plant(monkeypatch)
    counted = {"num_generations": 4, "max_completion_length": 3}
    result = evaluate(*make_policy(), PLANTED_ROWS, **counted, batch_size=1)
    assert result["accuracy"] == evaluate(*make_policy(), PLANTED_ROWS, **counted)["accuracy"]
    assert list(result) == [
        "accuracy", "accuracy_ci95", "pass_at_k", "rewards/accuracy_reward/mean", "frac_reward_zero_std", "mean_length",
        "format_rate", "think_rate", "n", "num_generations",
    ]  # fmt: skip
    assert result["accuracy"] == 3 / 8, "the first problem has two right ones, the second one"
    assert result["accuracy_ci95"] == wilson_interval(3 / 8, 2), "a trial is a problem"
    expected = {k: (pass_at_k(4, 2, k) + pass_at_k(4, 1, k)) / 2 for k in (1, 2, 4)}
    assert result["pass_at_k"] == {str(k): pytest.approx(value) for k, value in expected.items()}
    assert result["format_rate"] == 3 / 8 and result["think_rate"] == 3 / 8
    assert 1 <= result["mean_length"] <= 3 and (result["n"], result["num_generations"]) == (2, 4)
    json.dumps(result)


@pytest.mark.filterwarnings("ignore:every reward function .* returned None")
def test_groups_from_which_nothing_is_learnt_and_half_marks_are_not_right():
    """For two problems with two completions each; rewards of 0.5 and 0 differ, though neither means right."""
    for rewards, share in [
        ([0.0, 0.0, 1.0, 1.0], 1.0),
        ([0.0, 1.0, 1.0, 1.0], 0.5),
        ([0.5, 0.0, 0.0, 0.5], 0.0),
        ([None, None, None, 1.0], 0.5),
    ]:
        measure = {
            "num_generations": 2,
            "max_completion_length": 2,
            "reward_funcs": lambda *_, marks=rewards, **__: marks,
        }
        result = evaluate(*make_policy(), PLANTED_ROWS, **measure)
        assert result["frac_reward_zero_std"] == share and result["accuracy"] == rewards.count(1.0) / (
            4 - rewards.count(None)
        )
        assert list(result["pass_at_k"]) == ["1", "2"][: 1 if None in rewards else 2]
    result = evaluate(*make_policy(), PLANTED_ROWS, num_generations=1, max_completion_length=2)
    assert result["frac_reward_zero_std"] is None and json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("name", ["accuracy", "accuracy_ci95", "think_rate", "n"])
def test_a_metric_of_the_command_is_no_name_for_a_logged_one(name):
    def reward(completions, log_metric, **kwargs):
        log_metric(name, 0.5)
        return [1.0] * len(completions)

    measure = {"num_generations": 1, "max_completion_length": 2, "reward_funcs": reward}
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice; expected another name in `log_metric`"):
        evaluate(*make_policy(), PLANTED_ROWS, **measure)


def test_the_old_name_of_reward_funcs_works_and_warns():
    measure = {"num_generations": 2, "max_completion_length": 2}
    result = evaluate(*make_policy(), PLANTED_ROWS, reward_funcs=accuracy_reward, **measure)
    with pytest.warns(DeprecationWarning, match="the argument correct is called reward_funcs now"):
        assert evaluate(*make_policy(), PLANTED_ROWS, correct=accuracy_reward, **measure) == result


def test_the_argument_samples_still_gets_the_records_and_warns():
    measure, records = {"num_generations": 2, "max_completion_length": 2}, []
    with pytest.warns(
        DeprecationWarning,
        match="the argument samples is called sample_records.* now$",
    ):
        evaluate(*make_policy(), PLANTED_ROWS, samples=records, **measure)
    assert records == sample_records(PLANTED_ROWS, sample_problems(*make_policy(), PLANTED_ROWS, **measure))


def test_a_reward_on_another_scale_has_a_mean_and_no_accuracy(monkeypatch):
    plant(monkeypatch)

    def marks(completions, **columns):
        return [1.0, 7.0, 0.0, 10.0] * (len(completions) // 4)

    def nowhere(completions, **columns):
        return [None] * len(completions)

    measure = {"num_generations": 4, "max_completion_length": 3, "reward_funcs": [marks, accuracy_reward, nowhere]}
    result = evaluate(*make_policy(), PLANTED_ROWS, **measure)
    assert result["accuracy"] is result["accuracy_ci95"] is result["pass_at_k"] is None
    means = {name: value for name, value in result.items() if name.startswith("rewards/")}
    expected = {"rewards/marks/mean": 4.5, "rewards/accuracy_reward/mean": 3 / 8, "rewards/nowhere/mean": None}
    expected["rewards/nowhere/frac_none"] = 1.0  # the other two functions apply to every completion
    assert means == expected and json.dumps(result, allow_nan=False)


def test_reward_weights_give_the_weighted_reward_and_all_samples(monkeypatch):
    plant(monkeypatch)

    def length(completions, **columns):
        return [None if not text else float(len(text)) for text in completions]

    measure = {"num_generations": 4, "max_completion_length": 3, "reward_funcs": [accuracy_reward, length]}
    scored = sample_problems(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    result, samples = evaluation_metrics(scored, 4, has_reward_weights=True), sample_records(PLANTED_ROWS, scored)
    assert result == evaluate(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    planted_texts = [text for texts in TEXTS.values() for text in texts]
    assert [sample["completion"] for sample in samples] == planted_texts
    assert [sample["problem"] for sample in samples] == [0] * 4 + [1] * 4
    assert [sample["prompt"] for sample in samples] == ["a"] * 4 + ["f"] * 4
    for sample, right in zip(samples, [1, 1, 0, 0, 0, 0, 1, 0], strict=True):
        text = sample["completion"]
        assert sample["rewards"] == {"accuracy_reward": right, "length": float(len(text)) if text else None}
        assert sample["reward"] == right + 0.5 * len(text) and 1 <= sample["length"] <= 3
    assert result["reward"] == pytest.approx(sum(sample["reward"] for sample in samples) / 8)
    assert "reward" not in evaluate(*make_policy(), PLANTED_ROWS, **measure) and json.dumps(samples)


def test_the_command_weights_rewards_writes_samples_and_warns(base, tmp_path, capsys):
    out = Path(shutil.copytree(base, tmp_path / "out"))
    run = {"task": "sums", "reward_funcs": ["number", "format"], "reward_weights": [1.0, 0.25]}
    (out / "grpo_config.json").write_text(json.dumps(run), encoding="utf-8")
    quick = ["--model", str(out), "--n", "3", "--num_generations", "2", "--max_completion_length", "3"]
    assert main([*quick, "--output", str(tmp_path / "samples.jsonl")]) == 0
    captured = capsys.readouterr()
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(samples) == 6 and f"6 completions written to {(tmp_path / 'samples.jsonl').as_posix()}" in captured.err
    assert "reward = 1 number + 0.25 format" in captured.err
    mean = sum(sample["reward"] for sample in samples) / 6
    assert json.loads(captured.out)["reward"] == pytest.approx(mean, abs=1e-4)
    assert main([*quick, "--reward_funcs", "accuracy"]) == 0, "the weights belong to the rewards of the run"
    captured = capsys.readouterr()
    assert "reward" not in json.loads(captured.out)
    assert "all rewards were equal within each problem, so training on them would have no gradient" in captured.err


def test_lengths_count_the_end_token_and_global_random_state_stays():
    model, tokenizer = make_policy()
    model.train()
    torch.manual_seed(7)
    prompts = [row["prompt"] for row in ROWS]
    lengths = sample_completions(model, tokenizer, prompts, 4, 6).mask.sum(-1).float().mean().item()
    state = torch.get_rng_state()

    def mean_length(seed):
        measure = {"num_generations": 4, "max_completion_length": 6, "seed": seed}
        return evaluate(model, tokenizer, ROWS, **measure)["mean_length"]

    assert mean_length(7) == pytest.approx(lengths) and len({mean_length(seed) for seed in range(4)}) > 1
    assert torch.equal(torch.get_rng_state(), state) and model.training
    with pytest.raises(ValueError, match="rows is empty"):
        evaluate(*make_policy(), [])
    with pytest.raises(ValueError, match="num_generations is 0"):
        evaluate(*make_policy(), ROWS, num_generations=0)


@pytest.fixture
def evaluated_with(monkeypatch):
    """Replace `sample_problems`, so that nothing is sampled; return the rows and keywords that the command passes."""
    calls = []

    def record(model, tokenizer, rows, **keywords):
        calls.append((rows, keywords))

    monkeypatch.setattr(evaluate_module, "sample_problems", record)
    monkeypatch.setattr(evaluate_module, "evaluation_metrics", lambda *_, **__: {"accuracy": None})
    monkeypatch.setattr(evaluate_module, "sample_records", lambda *_: [])
    return calls


def test_stdout_is_one_json_object_alone(base, capsys):
    few = ["--num_generations", "2", "--max_completion_length", "4"]
    assert main(["--model", base, "--n", "12", "--seed", "3", *few]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.out.count("\n") == 1 and "policy:" in captured.err
    assert (result["task"], result["split"], result["n"], result["num_generations"]) == ("sums", "test", 12, 2)
    assert "evaluate: 100%" in captured.err and "12/12" in captured.err
    assert all(number == round(number, 4) for number in result["accuracy_ci95"]), "at most four decimals"


def test_the_usual_measure_is_a_thousand_sums_that_are_held_out(base, evaluated_with, monkeypatch):
    monkeypatch.setitem(table.TASKS["sums"].default_counts, "test", 7)
    for words, n, seed in ([], 7, 1), (["--n", "12", "--seed", "3"], 12, 3):
        assert main(["--model", base, *words]) == 0
        rows, keywords = evaluated_with.pop()
        assert rows == addition_problems("test", n, seed)
        assert all(addition_split(row["operands"]) == "test" for row in rows), "held out"
        sampling = {"num_generations": 4, "max_completion_length": 64, "temperature": 1.0, "batch_size": 512}
        sampling |= {"reward_weights": None}
        assert keywords == sampling | {
            "disable_tqdm": False,
            "reward_funcs": [accuracy_reward, think_rate],
            "seed": seed,
        }


def test_other_tasks_and_what_is_right_there(base, evaluated_with, capsys):
    for arguments, right, length in [
        (["--task", "word-problems"], ["math_reward", "format_reward"], 256),
        (["--task", "word-problems-zh", "--reward_funcs", "number"], ["number_reward"], 256),
        (["--task", "chat-zh"], ["contains_reward"], 48),
        (["--task", "sums", "--reward_funcs", "format", "accuracy"], ["format_reward", "accuracy_reward"], 64),
    ]:
        assert main(["--model", base, *arguments]) == 0
        rows, keywords = evaluated_with.pop()
        assert reward_names(keywords["reward_funcs"]) == right and keywords["max_completion_length"] == length
        task = find_task(arguments[1])
        assert [row["answer"] for row in rows] == [row["answer"] for row in task.rows("test", None, 1)]
        captured = capsys.readouterr()
        assert ("no problem is held out" in captured.err) == (task.name == "chat-zh")
        assert '"accuracy": null' in captured.out
        assert f"there is no accuracy: {right[0]} gives no rewards, or values other than 0 to 1" in captured.err


def test_what_is_not_typed_is_as_in_the_run_that_made_the_model(base, evaluated_with, capsys, tmp_path):
    run = {"task": "word-problems", "reward_funcs": ["number"], "system_prompt": "Be brief.", "chat_template": "none"}
    for folder in (out := Path(shutil.copytree(base, tmp_path / "out")), out / "checkpoint-2"):
        shutil.copytree(base, folder, dirs_exist_ok=True)
        (out / "grpo_config.json").write_text(json.dumps(run | {"seed": 3}), encoding="utf-8")
        for typed, names, plain in [
            ([], ["number_reward"], True),
            (["--task", "word-problems", "--reward_funcs", "math"], ["math_reward"], True),
            (["--task", "sums"], ["accuracy_reward", "think_rate"], False),
        ]:
            assert main(["--model", str(folder), "--n", "2", *typed]) == 0
            rows, keywords = evaluated_with.pop()
            assert reward_names(keywords["reward_funcs"]) == names and isinstance(rows[0]["prompt"], str) == plain
            assert not plain or rows[0]["prompt"].startswith("Be brief.")
            sources = [line for line in capsys.readouterr().err.splitlines() if line.startswith("as in the run of")]
            assert [line.endswith("'Be brief.' --chat_template none") for line in sources] == [True] * plain


def test_how_data_of_ones_own_was_read_is_as_in_the_run_too(base, evaluated_with, capsys, tmp_path):
    out, school = Path(shutil.copytree(base, tmp_path / "out")), tmp_path / "school.csv"
    lines = "".join(f"{n} + 1 = ?,{n + 1},{n % 3}\n" for n in range(60))
    school.write_text("question,solution,grade\n" + lines, encoding="utf-8")
    run = {"task": str(school), "prompt_column": "question", "answer_column": "solution"}
    (out / "grpo_config.json").write_text(json.dumps(run), encoding="utf-8")
    for typed, start in [([], ""), (["--prompt_template", "Grade {grade}: {question}"], "Grade ")]:
        assert main(["--model", str(out), "--n", "2", *typed]) == 0
        rows, _ = evaluated_with.pop()
        assert [row["answer"] for row in rows] == [row["solution"] for row in rows]
        for row in rows:
            grade = f"Grade {row['grade']}: " if start else ""
            assert row["prompt"][-1]["content"] == f"{grade}{row['question']}"
    assert "--answer_column solution" in capsys.readouterr().err


EVIL = "open('ran', 'w').close()\ndef reward(completions, **_):\n    return [1.0] * len(completions)\n"
CALLS = [
    *((main, ["--model", model]) for model in (".", "checkpoint-1")),
    *((train_main, words) for words in (["--config", ".", "--output_dir", "out"], ["--resume_from_checkpoint", "."])),
]


def test_a_folder_that_came_from_elsewhere_runs_nothing_and_nothing_is_sent(
    base, evaluated_with, tmp_path, monkeypatch
):
    """In `cd downloaded; evaluate --model .`, grpo_config.json could name code that somebody else wrote."""
    folder = Path(shutil.copytree(base, tmp_path / "downloaded"))
    (folder / "evil.py").write_text(EVIL, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something was sent"))
    shutil.copytree(base, "checkpoint-1")
    for reward in ("evil.py:reward", "evil:reward"):
        (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", "reward_funcs": [reward]}), "utf-8")
        for command, words in CALLS:
            assert f"if you trust it, type --reward_funcs {reward}" in refused(command, *words)
        assert not (folder / "ran").exists() and not (folder / "out").exists() and "evil" not in sys.modules
    for option, value, calls in (("task", "them/sums", CALLS), ("loss_type", "evil.py:reward", CALLS[2:])):
        (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", option: value}), "utf-8")
        for command, words in calls:
            assert f"if you trust it, type --{option} {value}" in refused(command, *words)
        assert not (folder / "ran").exists() and "evil" not in sys.modules
    (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", "reward_funcs": ["evil:reward"]}), "utf-8")
    assert main(["--model", ".", "--reward_funcs", "evil:reward"]) == 0 and (folder / "ran").exists()
    sys.modules.pop("evil")


def test_the_thinking_probability_is_the_share_of_drawn_answers_that_begin_so():
    """For the tiny model and prompts of different lengths, it is the mean of the softmax over prompts."""
    model, tokenizer = load_policy("tiny")
    rows = [*addition_problems("test", 3, seed=1), {"prompt": [{"role": "user", "content": "你好"}]}]
    (think,) = tokenizer("<think>", add_special_tokens=False).input_ids
    expected = []
    for row in rows:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(model(ids).logits[0, -1].double().softmax(-1)[think].item())
    assert max(expected) > 3 * min(expected), "the prompts differ in it"
    for batch_size in (1, 2, 512):
        measured = thinking_probability(model, tokenizer, rows, batch_size=batch_size)
        assert measured == pytest.approx(sum(expected) / 4, rel=1e-5)
    with pytest.raises(ValueError, match="tokenizer writes '<think>' as 0 tokens; expected one"):
        thinking_probability(*make_policy(), rows)
    with pytest.raises(ValueError, match="rows is empty"):
        thinking_probability(model, tokenizer, [])
