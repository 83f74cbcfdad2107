"""What may change on resuming, and what is refused by name: settings, model, data, rewards, tokenizer, length."""

import importlib
import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.base.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS, GRPOConfig
from grpo_lab.trainer import Run
from grpo_lab.trainer.folder import RunFolder
from tests.support.resuming import (
    CHEAP,
    ONE_UPDATE,
    assert_same_end,
    cheap_run,
    cheap_run_until,
    contents,
    copy_of,
    real_run,
    run_until_killed,
)
from tests.support.worlds import (
    ROWS,
    letter_reward,
    make_config,
    make_tokenizer,
    make_world,
    none_for_some,
    same_weights,
    weights,
)


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """A run of which two steps are saved and three are made."""
    return cheap_run_until(tmp_path_factory.mktemp("cut") / "out", 3)


def test_every_setting_but_those_that_change_no_number_is_compared(tmp_path):
    settings = GRPOConfig().saved()
    run = RunFolder(make_config(output_dir=str(tmp_path)), settings)
    for name in SETTINGS:
        run.manifest = {"settings": settings | {name: "another"}, "ingredients": {}, "checkpoints": {}}
        if name in {*MAY_CHANGE, "max_steps"}:  # whose own check is below
            run._check_same_run({})
        else:
            with pytest.raises(ValueError, match=f"config differs from that of the run in .* .{name}: was .*; take"):
                run._check_same_run({})


@pytest.mark.parametrize("begins", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_evaluations_may_begin_or_end_when_a_run_goes_on_and_training_computes_the_same(begins, tmp_path):
    """The folder says what it was last."""
    parts = [{"eval_steps": 1, "held_out": ROWS}, {"save_steps": 1, "disable_tqdm": False}]
    first, then = reversed(parts) if begins else parts
    short = {"max_steps": 3} | ONE_UPDATE
    want = real_run(tmp_path / "whole", **short)
    run_until_killed(tmp_path / "out", 2, **short, **first)
    folder, model, history = real_run(tmp_path / "out", resume=True, **short, **then)
    assert same_weights(weights(model), weights(want[1]))
    assert [m["loss"] for m in history] == [m["loss"] for m in want[2]]
    assert ["eval/reward" in metrics for metrics in history] == [not begins, not begins, begins]
    saved = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["eval_steps"] == then.get("eval_steps") and not saved["resume_from_checkpoint"]
    if not begins:
        with pytest.raises(ValueError, match="^eval_dataset differs from that of the run"):
            real_run(folder, resume=True, eval_steps=1, held_out=ROWS[1:], **short)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_run_may_grow_and_is_then_the_longer_run(schedule, tmp_path, capsys):
    """With a schedule that falls to zero, the steps already made were those of the shorter run; so it is said."""
    settings = {"lr_scheduler_type": schedule, "max_steps": 6}
    want = cheap_run(tmp_path / "whole", **settings)
    cheap_run(tmp_path / "out", **settings | {"max_steps": 4})
    capsys.readouterr()
    folder, model, history = cheap_run(tmp_path / "out", **settings)
    said = capsys.readouterr().out
    assert "Resumed at step 4 of 6" in said and len(history) == 6
    assert ("max_steps was 4: from here on the linear schedule is that of 6" in said) == (schedule == "linear")
    if schedule == "constant":
        assert_same_end((folder, model, history), want)
    saved = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["max_steps"] == 6
    assert_same_end(cheap_run(folder, **settings), (folder, model, history))


def test_a_run_may_become_shorter_but_not_than_what_is_done(cut_off, tmp_path):
    before = contents(cut_off)
    with pytest.raises(ValueError, match="^max_steps is 1; expected at least 2: .* has those steps already"):
        cheap_run(cut_off, max_steps=1)
    assert contents(cut_off) == before
    assert_same_end(cheap_run(copy_of(cut_off, tmp_path / "out"), max_steps=3), cheap_run(tmp_path / "3", max_steps=3))


def opened(folder, model=None, tokenizer=None, rows=ROWS, rewards=letter_reward, **settings):
    """A run that is resumed with some of its ingredients changed, up to its first step; the model it then has."""
    world = make_world(num_hidden_layers=1)
    model, tokenizer = model or world[0], tokenizer or world[1]
    config = make_config(output_dir=str(folder), resume_from_checkpoint=True, **CHEAP, **settings)
    run = Run(model, tokenizer, rows, config, rewards)
    with pytest.raises(InterruptedError), run:
        raise InterruptedError
    return model


def changed_weights(model):
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1e-3
    return model


OTHERS = {
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
        {"rewards": none_for_some},
        "^reward_funcs differs .*functions: was .*letter_.*, is .*none_for",
    ),
    "rewards": ({"rewards": [letter_reward, none_for_some]}, "^reward_funcs differs .*functions: was"),
}


def test_model_and_tokenizer_may_be_those_of_a_checkpoint_and_a_loop_of_ones_own_has_no_rewards(cut_off, tmp_path):
    parts = [kind.from_pretrained(cut_off / "checkpoint-2") for kind in (AutoModelForCausalLM, AutoTokenizer)]
    loaded = opened(copy_of(cut_off, tmp_path / "out"), *parts, rewards=None)
    saved = AutoModelForCausalLM.from_pretrained(cut_off / "checkpoint-2", local_files_only=True)
    assert same_weights(weights(loaded), weights(saved))


@pytest.mark.parametrize("name", OTHERS)
def test_another_ingredient_is_refused_by_name(name, cut_off):
    changes, message = OTHERS[name]
    if callable(change := changes.get("model")):
        changes = {"model": change(make_world(num_hidden_layers=1)[0])}
    before = contents(cut_off)
    with pytest.raises(ValueError, match=message):
        opened(cut_off, **changes)
    assert contents(cut_off) == before


def test_a_reward_is_refused_with_the_file_that_has_changed(tmp_path, monkeypatch):
    """The function itself; a constant beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "SCALE = 1.0\ndef mine(completions, **kwargs):\n    return [SCALE * len(each) for each in completions]\n"

    def imported(old="", new=""):
        (tmp_path / "my_rewards.py").write_text(source.replace(old, new), encoding="utf-8")
        monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("my_rewards").mine

    cheap_run_until(tmp_path / "out", 3, reward=imported())
    opened(tmp_path / "out", rewards=imported())
    for old, new in [("* len(", "* hash("), ("1.0", "2.0")]:
        with pytest.raises(ValueError, match="^reward_funcs differs from that of the run in .* .my_rewards.py: was"):
            opened(tmp_path / "out", rewards=imported(old, new))


def made_with(held):
    return lambda completions, **kwargs: [held * len(completion) for completion in completions]


class Client:
    """Such as a connection: nobody can say whether another one answers alike."""

    def __init__(self, **said):
        self.__dict__ |= said

    def __mul__(self, length):
        return 0.5


def test_a_reward_made_with_another_value_or_with_what_cannot_be_compared_is_refused(tmp_path):
    """The sign of every reward changes, and no file does. What cannot be compared may say what it is."""
    for name, began, same, other, message in [
        ("sign", 1, 1, -1, "number 1, made with: was .*held = 1.* is .*held = -1.*start a new run"),
        ("client", Client(), None, Client(), r"holds held \(Client\), which cannot be compared.*`fingerprint`"),
        ("said", *(Client(fingerprint=f"judge {size}B") for size in (7, 7, 8)), "made with: was .*judge 7B"),
    ]:
        cheap_run_until(tmp_path / name, 3, reward=made_with(began))
        if same is not None:
            opened(tmp_path / name, rewards=made_with(same))
        with pytest.raises(InputError, match=message):
            opened(tmp_path / name, rewards=made_with(other))
