"""What may change on resuming, and what is refused by name: settings, model, data, rewards, tokenizer, length."""

import functools
import json
from dataclasses import asdict, fields

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.config import GRPOConfig
from grpo_lab.models.frozen import frozen_copy
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import Run
from grpo_lab.trainer.folder.fingerprint import fingerprints, of_function, of_rows, of_tokenizer, of_weights
from grpo_lab.trainer.folder.same_run import FREE_SETTINGS, check_settings
from tests.support.resuming import (
    CHEAP,
    assert_same_end,
    cheap_run,
    cheap_run_until,
    contents,
    copy_of,
    metrics_in,
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

FREE = {
    *("output_dir", "resume_from_checkpoint", "save_steps", "save_total_limit", "report_to", "disable_tqdm"),
    *("run_name", "logging_steps", "log_completions", "num_completions_to_print"),
    *("early_stopping_patience", "early_stopping_threshold"),
}


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """A run of which two steps are saved and three are made."""
    return cheap_run_until(tmp_path_factory.mktemp("cut") / "out", 3)


def test_the_settings_that_may_change():
    assert set(FREE_SETTINGS) == FREE


@pytest.mark.parametrize("name", [field.name for field in fields(GRPOConfig)])
def test_every_setting_but_those_that_change_no_number_is_compared(name, tmp_path):
    settings = asdict(GRPOConfig())
    before = settings | {name: "another"}
    if name in FREE | {"max_steps"}:  # whose own check is below
        check_settings(tmp_path, before, settings)
    else:
        with pytest.raises(ValueError, match=f"config differs from that of the run in .* .{name}: was .*; resume it"):
            check_settings(tmp_path, before, settings)


def test_changed_settings_are_refused_by_name_and_nothing_is_lost(cut_off):
    before = contents(cut_off)
    with pytest.raises(ValueError, match="learning_rate: was 0.01, is 0.02.*resume it unchanged"):
        cheap_run(cut_off, learning_rate=0.02)
    assert contents(cut_off) == before


def test_changed_settings_are_refused_before_the_first_checkpoint_too(tmp_path):
    folder = cheap_run_until(tmp_path / "out", 1)
    with pytest.raises(ValueError, match="seed: was 0, is 1"):
        cheap_run(folder, seed=1)
    assert len(metrics_in(folder)) == 1


@pytest.mark.slow
def test_settings_that_change_no_number_may_change(tmp_path):
    whole = real_run(tmp_path / "whole")
    run_until_killed(tmp_path / "out", 3)
    end = real_run(tmp_path / "out", resume=True, save_steps=1, report_to="tensorboard", disable_tqdm=False)
    assert same_weights(weights(end[1]), weights(whole[1]))


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
    assert ("max_steps was 4, is 6: from here on the linear schedule is that of a run of 6" in said) == (
        schedule == "linear"
    )
    if schedule == "constant":
        assert_same_end((folder, model, history), want)
    saved = json.loads((folder / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["max_steps"] == 6
    assert_same_end(cheap_run(folder, **settings), (folder, model, history))


def test_a_run_may_become_shorter_but_not_than_what_is_done(cut_off, tmp_path):
    before = contents(cut_off)
    with pytest.raises(
        ValueError, match=r"^max_steps is 1; it must be at least 2, the steps that the run in .* has made"
    ):
        cheap_run(cut_off, max_steps=1)
    assert contents(cut_off) == before
    assert_same_end(cheap_run(copy_of(cut_off, tmp_path / "out"), max_steps=3), cheap_run(tmp_path / "3", max_steps=3))


def opened(folder, model=None, tokenizer=None, rows=ROWS, rewards=letter_reward):
    """A run that is resumed with some of its ingredients changed, up to its first step; the model it then has."""
    world = make_world(num_hidden_layers=1)
    model, tokenizer = model or world[0], tokenizer or world[1]
    config = make_config(output_dir=str(folder), resume_from_checkpoint=True, **CHEAP)
    run = Run(model, tokenizer, rows, config, rewards)
    with pytest.raises(InterruptedError), run:
        raise InterruptedError
    return model


def changed_weights(model):
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1e-3
    return model


def with_frozen_part(model):
    next(model.parameters()).requires_grad_(False)
    return model


def other_template():
    tokenizer = make_tokenizer()
    tokenizer.chat_template += " "
    return tokenizer


OTHERS = {
    "weights": ({"model": changed_weights}, "^model differs from the one that the run in .* began with, and from all"),
    "parameters": ({"model": with_frozen_part}, "^model has 14 parameters that require a gradient; expected the 15"),
    "rows": ({"rows": ROWS[:3]}, "^dataset differs .* .it had 4 rows, this one has 3.; pass the same rows"),
    "order": ({"rows": ROWS[::-1]}, "^dataset differs .* began|^dataset differs from that of the run in '[^']*'; pass"),
    "answer": ({"rows": [ROWS[0] | {"answer": "3"}, *ROWS[1:]]}, "^dataset differs"),
    "tokenizer": ({"tokenizer": make_tokenizer(pad_is_end=True)}, "^tokenizer differs .*; load the one"),
    "template": ({"tokenizer": other_template()}, "^tokenizer differs"),
    "reward": ({"rewards": none_for_some}, "^reward_funcs is .*none_for_some; expected .*letter_reward, as in the run"),
    "rewards": ({"rewards": [letter_reward, none_for_some]}, "^reward_funcs is .*none_for_some; expected .*letter_rew"),
    "partial": (
        {"rewards": functools.partial(letter_reward, scale=2)},
        r"^reward_funcs: .*letter_reward was bound to nothing, is bound to \('scale', 2\) since the run",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_ingredient_is_refused_by_name(name, cut_off):
    changes, message = OTHERS[name]
    if callable(change := changes.get("model")):
        changes = {"model": change(make_world(num_hidden_layers=1)[0])}
    before = contents(cut_off)
    with pytest.raises(ValueError, match=message):
        opened(cut_off, **changes)
    assert contents(cut_off) == before


def test_a_reward_function_that_was_edited_is_refused(cut_off, tmp_path):
    edited = {}
    exec("def letter_reward(completions, **kwargs):\n    return [1.0] * len(completions)", edited)
    edited["letter_reward"].__module__ = letter_reward.__module__
    folder = copy_of(cut_off, tmp_path / "out")
    opened(folder, rewards=edited["letter_reward"])  # no source is to be had: taken by its name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inspect.getsource", lambda named: "def letter_reward(completions):\n    return 0")
        with pytest.raises(ValueError, match=r"^reward_funcs: .*letter_reward has been changed since the run in"):
            opened(folder)


@pytest.mark.parametrize("start", ["the start", "checkpoint-2"])
def test_the_model_may_be_that_of_the_start_or_of_a_checkpoint(start, cut_off, tmp_path):
    """Whoever resumes with the output folder's own model gets the same run: the reference, too, is the saved one."""
    folder, model = copy_of(cut_off, tmp_path / "out"), None
    if start != "the start":
        model = AutoModelForCausalLM.from_pretrained(folder / start, local_files_only=True)
    loaded = opened(folder, model=model, tokenizer=AutoTokenizer.from_pretrained(folder / "checkpoint-2"))
    saved = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-2", local_files_only=True)
    assert same_weights(weights(loaded), weights(saved))


def test_a_run_without_known_rewards_goes_on_with_any(cut_off, tmp_path):
    opened(copy_of(cut_off, tmp_path / "out"), rewards=None)


class Judge:
    def __init__(self):
        self.asked = 0

    def __call__(self, completions, **kwargs):
        self.asked += 1
        return [1.0] * len(completions)


def reward_with_notes(limit):
    seen, count = [], 0

    def reward(completions, **kwargs):
        nonlocal count
        count += 1
        seen.extend(completions)
        return [float(len(text) < limit) for text in completions]

    return reward


def test_what_a_function_gathers_while_it_is_called_counts_for_nothing():
    for function in (Judge(), reward_with_notes(3)):
        before = of_function(function)
        function(["a", "b"])
        assert of_function(function) == before
    assert of_function(reward_with_notes(4)) != of_function(reward_with_notes(3)), "what it was made with counts"


def test_a_function_is_known_by_what_it_does():
    def layout(text):
        scope = {}
        exec(compile(text, "none", "exec"), scope)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("inspect.getsource", lambda named: text)
            return of_function(scope["reward"])["does"]

    plain = layout("def reward(completions):\n    return [len(c) for c in completions]\n")
    dressed = '    def reward(completions):\n        """Longer is better."""\n        # really\n'
    assert plain == layout(
        dressed.replace("    def", "def") + "        return [len(c)\n            for c in completions]\n"
    )
    assert plain != layout("def reward(completions):\n    return [-len(c) for c in completions]\n")


def test_lambdas_are_known_by_their_bytecode():
    one, other = (lambda completions: [1 for _ in completions]), (lambda completions: [2 for _ in completions])
    assert of_function(one)["does"].startswith("bytecode") and of_function(one) != of_function(other)
    assert of_function(one) == of_function(lambda completions: [1 for _ in completions])


def test_builtin_functions_and_methods_have_a_name_at_least():
    assert of_function(len) == {"name": "builtins.len", "bound": [], "does": None}
    assert of_function("abc".count)["name"].endswith("count")


def test_a_model_is_the_same_on_any_way_through_the_disk(tmp_path):
    model, tokenizer = make_world(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (
        of_weights(AutoModelForCausalLM.from_pretrained(tmp_path))
        == of_weights(model)
        == of_weights(frozen_copy(model))
    )
    assert of_weights(model.bfloat16()) != of_weights(make_world(tie_word_embeddings=True)[0])
    before = of_tokenizer(tokenizer)
    tokenizer(["a", "abcd"], padding=True)
    assert of_tokenizer(tokenizer) == before == of_tokenizer(AutoTokenizer.from_pretrained(tmp_path))


def test_the_tiny_model_and_its_problems_have_one_fingerprint(tiny):
    rows = addition_problems("train", 50, 0)
    prints = fingerprints(*tiny, rows, [letter_reward])
    assert prints == json.loads(json.dumps(prints)) == fingerprints(*tiny, list(rows), letter_reward)
    assert of_rows(rows) != of_rows(addition_problems("train", 50, 1))
