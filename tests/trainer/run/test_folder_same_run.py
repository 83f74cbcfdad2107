"""Changes on resuming: allowed ones, and refused ones of settings, model, data, rewards, tokenizer and length."""

import functools
import hashlib
import importlib
import inspect
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo_lab.rewards.rules
from grpo_lab.base.checks import InputError
from grpo_lab.config import MAY_CHANGE_ON_RESUME, SETTINGS, GRPOConfig
from grpo_lab.rewards import accuracy_reward, contains_reward
from grpo_lab.trainer import Run
from grpo_lab.trainer.run.checkpoint import as_json
from grpo_lab.trainer.run.fingerprints import UNCOMPARABLE, check_same_fingerprints, input_fingerprints
from grpo_lab.trainer.run.folder import MANIFEST_FILE, MANIFEST_KEYS, RunFolder, manifest_checksum
from grpo_lab.trainer.run.inputs import RunInputs
from tests.support.resuming import (
    CHEAP_SETTINGS,
    ONE_UPDATE,
    assert_same_end,
    cheap_run,
    cheap_run_until,
    copy_folder,
    file_contents,
    real_run,
    run_until_killed,
)
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    make_tokenizer,
    same_weights,
    weights,
)


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """The folder of a run that made three steps and saved two of them."""
    return cheap_run_until(tmp_path_factory.mktemp("cut") / "out", 3)


def test_every_setting_but_those_that_change_no_number_is_compared(tmp_path):
    settings = GRPOConfig().as_dict()
    folder = RunFolder(make_config(output_dir=str(tmp_path)), settings)
    for name in SETTINGS:
        folder.manifest = {"settings": settings | {name: "another"}, "fingerprints": {}, "checkpoints": {}}
        if name in MAY_CHANGE_ON_RESUME:  # these settings have tests of their own below
            folder._check_same_run({})
        else:
            with pytest.raises(ValueError, match=f"config differs from that of the run in .* .{name}: was .*; take"):
                folder._check_same_run({})


def test_the_former_default_of_tool_timeout_in_a_saved_run_is_no_change(tmp_path):
    settings = GRPOConfig().as_dict()
    folder = RunFolder(make_config(output_dir=str(tmp_path)), settings)
    folder.manifest = {"settings": settings | {"tool_timeout": 30.0}, "fingerprints": {}, "checkpoints": {}}
    folder._check_same_run({})


@pytest.mark.parametrize("begins", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_evaluations_may_change_on_resuming_and_training_does_not(begins, tmp_path):
    """The folder has the settings of the last start."""
    parts = [{"eval_steps": 1, "held_out": ROWS}, {"save_steps": 1, "disable_tqdm": False}]
    first, then = reversed(parts) if begins else parts
    short = {"max_steps": 3} | ONE_UPDATE
    expected = real_run(tmp_path / "whole", **short)
    run_until_killed(tmp_path / "out", 2, **short, **first)
    folder, model, history = real_run(tmp_path / "out", resume=True, **short, **then)
    assert same_weights(weights(model), weights(expected[1]))
    assert [m["loss"] for m in history] == [m["loss"] for m in expected[2]]
    assert ["eval/reward" in metrics for metrics in history] == [not begins, not begins, begins]
    saved = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["eval_steps"] == then.get("eval_steps") and not saved["resume_from_checkpoint"]
    if not begins:
        with pytest.raises(ValueError, match="^eval_dataset differs from that of the run"):
            real_run(folder, resume=True, eval_steps=1, held_out=ROWS[1:], **short)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_max_steps_may_grow_and_the_resumed_run_goes_on_to_the_larger_number(schedule, tmp_path, capsys):
    """With a falling schedule the first steps had the rates of the shorter run, so a message says that."""
    settings = {"lr_scheduler_type": schedule, "max_steps": 6}
    expected = cheap_run(tmp_path / "whole", **settings)
    cheap_run(tmp_path / "out", **settings | {"max_steps": 4})
    capsys.readouterr()
    folder, model, history = cheap_run(tmp_path / "out", **settings)
    output = capsys.readouterr().out
    assert "Resumed at step 4 of 6" in output and len(history) == 6
    assert ("max_steps was 4: from here on the linear schedule is that of 6" in output) == (schedule == "linear")
    if schedule == "constant":
        assert_same_end((folder, model, history), expected)
    saved = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["max_steps"] == 6
    assert_same_end(cheap_run(folder, **settings), (folder, model, history))


def test_max_steps_may_shrink_to_the_steps_that_are_done_and_no_further(cut_off, tmp_path):
    before = file_contents(cut_off)
    with pytest.raises(ValueError, match="^max_steps is 1; expected at least 2: .* has those steps already"):
        cheap_run(cut_off, max_steps=1)
    assert file_contents(cut_off) == before
    assert_same_end(
        cheap_run(copy_folder(cut_off, tmp_path / "out"), max_steps=3), cheap_run(tmp_path / "3", max_steps=3)
    )


def resume_until_first_step(folder, model=None, tokenizer=None, rows=ROWS, rewards=letter_reward, **settings):
    """Resume a run with some of its inputs changed, up to its first step; return its model."""
    policy = make_policy(num_hidden_layers=1)
    model, tokenizer = model or policy[0], tokenizer or policy[1]
    config = make_config(output_dir=str(folder), resume_from_checkpoint=True, **CHEAP_SETTINGS, **settings)
    run = Run(model, tokenizer, rows, rewards, config)
    with pytest.raises(InterruptedError), run:
        raise InterruptedError
    return model


def changed_weights(model):
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1e-3
    return model


CHANGED_INPUTS = {
    "setting": ({"learning_rate": 0.02}, "learning_rate: was 0.01, is 0.02.*; take what it began with"),
    "weights": (
        {"model": changed_weights},
        r"^model differs from that of the run in .* \(weights: was '.*', is '.*'\); take what it began with",
    ),
    "dtype": ({"model": lambda model: model.double()}, "^config differs .*precision: was .fp32., is None"),
    "rows": ({"rows": ROWS[:3]}, "^dataset differs .*rows: was 4, is 3"),
    "order": ({"rows": ROWS[::-1]}, r"^dataset differs .* \(contents: was"),
    "answer": ({"rows": [ROWS[0] | {"answer": "3"}, *ROWS[1:]]}, "^dataset differs"),
    "tokenizer": ({"tokenizer": make_tokenizer(pad_is_end=True)}, "^tokenizer differs .*; take what it began with"),
    "reward": (
        {"rewards": length_reward_or_none},
        "^reward_funcs differs .*functions: was .*letter_.*, is .*length_reward_or",
    ),
    "rewards": ({"rewards": [letter_reward, length_reward_or_none]}, "^reward_funcs differs .*functions: was"),
}


def test_a_run_resumes_with_the_model_of_its_checkpoint_and_without_rewards(cut_off, tmp_path):
    parts = [kind.from_pretrained(cut_off / "checkpoint-2") for kind in (AutoModelForCausalLM, AutoTokenizer)]
    loaded = resume_until_first_step(copy_folder(cut_off, tmp_path / "out"), *parts, rewards=None)
    saved = AutoModelForCausalLM.from_pretrained(cut_off / "checkpoint-2", local_files_only=True)
    assert same_weights(weights(loaded), weights(saved))


@pytest.mark.parametrize("name", CHANGED_INPUTS)
def test_resuming_with_another_input_is_refused_by_name(name, cut_off):
    changes, message = CHANGED_INPUTS[name]
    if callable(change := changes.get("model")):
        changes = {"model": change(make_policy(num_hidden_layers=1)[0])}
    before = file_contents(cut_off)
    with pytest.raises(ValueError, match=message):
        resume_until_first_step(cut_off, **changes)
    assert file_contents(cut_off) == before


def test_a_reward_is_refused_with_the_file_that_has_changed(tmp_path, monkeypatch):
    """One case changes the function itself, the other a constant of its module."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "SCALE = 1.0\ndef mine(completions, **kwargs):\n    return [SCALE * len(each) for each in completions]\n"

    def imported(old="", new=""):
        (tmp_path / "my_rewards.py").write_text(source.replace(old, new), encoding="utf-8")
        monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("my_rewards").mine

    cheap_run_until(tmp_path / "out", 3, reward=imported())
    resume_until_first_step(tmp_path / "out", rewards=imported())
    for old, new in [("* len(", "* hash("), ("1.0", "2.0")]:
        with pytest.raises(ValueError, match="^reward_funcs differs from that of the run in .* .my_rewards.py: was"):
            resume_until_first_step(tmp_path / "out", rewards=imported(old, new))


def closure(sign):
    return lambda completions, **kwargs: [sign * len(completion) for completion in completions]


def plain(completions, sign=1, **kwargs):
    return [sign * len(completion) for completion in completions]


class Instance:
    def __init__(self, sign):
        self.sign = sign

    def __call__(self, completions, **kwargs):
        return plain(completions, self.sign)


def cell_of_a_notebook(sign):
    """Return a function of a module without a file, as in a notebook."""
    scope = {"__name__": "__main__"}
    exec(f"def reward(completions, **kwargs): return [{sign} * len(text) for text in completions]", scope)
    return scope["reward"]


OTHER_REWARDS = {
    "closure": (closure, r"test_folder_same_run.closure.<locals>.<lambda>"),
    "partial": (lambda sign: functools.partial(plain, sign=sign), r"functools.partial"),
    "instance": (Instance, r"test_folder_same_run.Instance"),
    "method": (lambda sign: Instance(sign).__call__, r"test_folder_same_run.Instance.__call__"),
    "cell": (cell_of_a_notebook, r"__main__.reward"),
}


@pytest.mark.parametrize("kind", OTHER_REWARDS)
def test_a_reward_without_a_fingerprint_is_refused_unless_allowed(kind, tmp_path):
    make, name = OTHER_REWARDS[kind]
    cheap_run_until(tmp_path / "out", 3, reward=make(1))
    message = f"^reward_funcs holds .*{name}, which cannot be compared .* `fingerprint`, .* ignore_reward_changes=True"
    with pytest.raises(InputError, match=message):
        resume_until_first_step(tmp_path / "out", rewards=make(1))
    resume_until_first_step(tmp_path / "out", rewards=make(1), ignore_reward_changes=True)
    with pytest.raises(InputError, match=message):  # the next time, too
        resume_until_first_step(tmp_path / "out", rewards=make(1))


@pytest.mark.parametrize("name", ["environment", "loss_type"])
def test_an_uncomparable_input_other_than_a_reward_has_no_advice_to_ignore_rewards(name):
    """The setting `ignore_reward_changes` would lead to the same error."""
    fingerprints = {name: {"functions": ["x"], UNCOMPARABLE: ["x"]}}
    with pytest.raises(InputError, match=f"^{name} holds x, .*`fingerprint`, or start a new run") as caught:
        check_same_fingerprints(fingerprints, fingerprints, "out")
    assert "ignore_reward_changes" not in str(caught.value)


def test_a_run_of_version_1_0_0_goes_on(tmp_path):
    """Its manifest has the fingerprints under the name "ingredients"."""
    cheap_run_until(tmp_path / "out", 3)
    manifest_file = tmp_path / "out" / MANIFEST_FILE
    manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    del manifest["checksum"]
    manifest = {"ingredients" if name == "fingerprints" else name: value for name, value in manifest.items()}
    signed = {"checksum": manifest_checksum(manifest)} | manifest
    manifest_file.write_text(as_json(signed, indent=1) + "\n", encoding="utf-8")
    resume_until_first_step(tmp_path / "out")
    assert json.loads(manifest_file.read_text(encoding="utf-8")).keys() == {"checksum", *MANIFEST_KEYS}


def test_a_fingerprint_is_compared_and_a_change_may_be_ignored(tmp_path):
    def judge(size):
        reward = closure(1)
        reward.fingerprint = f"judge {size}B"
        return reward

    cheap_run_until(tmp_path / "out", 3, reward=judge(7))
    resume_until_first_step(tmp_path / "out", rewards=judge(7))
    with pytest.raises(InputError, match="number 1: was 'judge 7B', is 'judge 8B'.*ignore_reward_changes=True"):
        resume_until_first_step(tmp_path / "out", rewards=judge(8))
    resume_until_first_step(tmp_path / "out", rewards=judge(8), ignore_reward_changes=True)
    saved = json.loads((tmp_path / "out" / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["ignore_reward_changes"] is False


def test_rewards_of_the_package_are_compared_by_their_file():
    inputs = RunInputs(*make_policy(num_hidden_layers=1), ROWS, [accuracy_reward, contains_reward], make_config())
    fingerprint = input_fingerprints(inputs)["reward_funcs"]
    source = Path(inspect.getfile(grpo_lab.rewards.rules)).read_bytes()
    assert fingerprint.pop("rules.py") == hashlib.sha256(source).hexdigest()[:16]
    names = ["grpo_lab.rewards.rules.accuracy_reward", "grpo_lab.rewards.rules.contains_reward"]
    assert fingerprint == {"functions": names, "what cannot be compared": []}
