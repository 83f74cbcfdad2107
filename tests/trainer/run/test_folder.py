"""The folder of a run: refused starts, a second run at the same time, kept checkpoints, and the files at the end.

Files of others in the folder are never deleted, moved or overwritten.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from grpo_lab.base.checks import InputError
from grpo_lab.trainer import train
from grpo_lab.trainer.run import checkpoint
from grpo_lab.trainer.run.fingerprints import model_fingerprint
from grpo_lab.trainer.run.folder import CHANGING_FILES, LOCK_FILE, RunFolder, check_folder
from tests.support.architectures import ARCHITECTURES, make_architecture
from tests.support.resuming import (
    assert_same_end,
    cheap_run,
    cheap_run_until,
    copy_folder,
    file_contents,
    file_names,
    metrics_in,
    newest_checkpoint,
    real_run,
)
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, same_weights, weights


@pytest.mark.parametrize("last", [1, 4])
def test_a_folder_with_a_run_is_refused_without_resume(last, tmp_path, capsys):
    cheap_run_until(tmp_path / "out", last)
    old_contents = file_contents(tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds a run already; choose another folder, or continue"):
        cheap_run(tmp_path / "out", resume=False)
    assert file_contents(tmp_path / "out") == old_contents
    cheap_run(tmp_path / "out")
    assert ("No checkpoint in" in capsys.readouterr().out) == (last == 1), "where a run goes on is always said"


def test_a_run_that_failed_before_its_first_step_leaves_the_folder_free(tmp_path):
    model, tokenizer = make_policy()
    config = make_config(output_dir=str(tmp_path))
    with pytest.raises(RuntimeError, match="reward function"):
        train(model, tokenizer, ROWS, lambda completions, **kwargs: 1 / 0, config)
    assert len(train(model, tokenizer, ROWS, letter_reward, config)) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "which does not exist; leave it out to start one"), ("empty", "which holds no grpo_run.json")],
)
def test_resuming_in_a_folder_without_a_run_is_refused_and_creates_nothing(name, message, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"^resume_from_checkpoint is True; expected a run in .*{message}"):
        cheap_run(tmp_path / name, resume=True)
    assert file_names(tmp_path) == ["empty"]


def test_resuming_a_complete_run_changes_nothing(whole_run):
    folder, model, history = whole_run
    old_contents = file_contents(folder)
    again = real_run(folder, resume=True)
    assert same_weights(weights(again[1]), weights(model)) and again[2] == history
    assert file_contents(folder) == old_contents


def test_the_folder_and_its_checkpoint_are_normal_transformers_checkpoints(whole_run):
    folder, trained, _ = whole_run
    assert sorted(path.name for path in folder.glob("*checkpoint*")) == ["checkpoint-4", "checkpoint-5"]
    for path in (folder, folder / "checkpoint-5"):
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        assert same_weights(weights(model), weights(trained))
        assert tokenizer("abc")["input_ids"] == make_policy()[1]("abc")["input_ids"] and tokenizer.chat_template
        assert model.generation_config.eos_token_id == trained.generation_config.eos_token_id
        assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) for name in file_names(path)), (
            "nothing is pickled"
        )


def test_without_save_steps_only_the_end_is_saved(tmp_path):
    cheap_run_until(tmp_path / "out", 3, save_steps=0)
    assert newest_checkpoint(tmp_path / "out") is None
    assert checkpoint_steps(cheap_run(tmp_path / "out", save_steps=0)[0]) == [4]


def test_a_model_that_could_not_be_saved_is_refused_at_the_start(tmp_path):
    """transformers loads such a model with a warning and refuses to save it; the error has its message."""
    model, tokenizer = make_policy()
    model.generation_config.update(do_sample=False, temperature=0.6)
    with pytest.raises(ValueError, match="GenerationConfig is invalid: .*\n.*temperature.*unset `temperature`"):
        train(model, tokenizer, ROWS, letter_reward, make_config(output_dir=str(tmp_path / "out")))


class Unwritable(PreTrainedTokenizerFast):
    def save_pretrained(self, *arguments, **settings):
        raise TypeError("Object of type Lock is not JSON serializable")


def test_models_and_tokenizers_that_cannot_be_saved_are_refused_before_the_first_step(tmp_path):
    model, tokenizer = make_policy()
    config = make_config(output_dir=str(tmp_path / "out"))
    tokenizer.__class__ = Unwritable
    with pytest.raises(InputError, match="tokenizer is one that transformers refuses to save: Object of type Lock"):
        train(model, tokenizer, ROWS, lambda **_: pytest.fail("a step was made"), config)
    model, tokenizer = make_policy()
    model.generation_config.max_new_tokens = 0
    with pytest.raises(InputError, match="model is one that transformers refuses to save: .*max_new_tokens"):
        train(model, tokenizer, ROWS, lambda **_: pytest.fail("a step was made"), config)
    assert file_names(tmp_path) == []


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "gpt2"])
def test_check_savable_does_not_change_the_model(name):
    model, tokenizer = make_architecture(name)
    start, settings = weights(model), model.config.to_dict()
    checkpoint.check_savable(model, tokenizer)
    assert same_weights(weights(model), start)
    assert model.config.to_dict() | {"dtype": None, "architectures": None} == settings | {
        "dtype": None,
        "architectures": None,
    }


def test_the_manifest_names_every_file_of_the_run_but_itself(whole_run):
    folder = whole_run[0]
    run = json.loads((folder / "grpo_run.json").read_text(encoding="utf-8"))
    named = {f"{name}/{file}" for name, entry in run["checkpoints"].items() for file in entry["files"]}
    assert named | {*CHANGING_FILES[:2], *run["trained"], "grpo_run.json"} == file_contents(folder).keys()
    assert len(metrics_in(folder)) == 5


FOLDER_IN_USE = (
    r"^output_dir is '.*out', where another run is at work; wait for its end, stop it, or choose another folder"
)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_same_folder_is_refused_without_harm_to_the_first(resume, undisturbed, tmp_path):
    folder, refused = tmp_path / "out", []

    def second(step, metrics):
        if resume or step == 1:
            old_contents = file_contents(folder)
            with pytest.raises(BlockingIOError, match=FOLDER_IN_USE):
                cheap_run(folder, resume=resume)
            refused.append(step)
            assert file_contents(folder) == old_contents

    assert_same_end(cheap_run(folder, callback=second), undisturbed)
    assert refused and not (folder / LOCK_FILE).exists()


# --- which checkpoints stay -----------------------------------------------------------------------------------------


def checkpoint_steps(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def test_save_total_limit_keeps_the_newest_checkpoints(tmp_path):
    steps = list(range(1, 13))
    for limit, expected in {1: steps[-1:], 3: steps[-3:], 99: steps, None: steps}.items():
        for step in steps:
            (tmp_path / f"checkpoint-{step}").mkdir(exist_ok=True)
        folder = RunFolder(make_config(output_dir=str(tmp_path), save_total_limit=limit), {})
        folder.manifest = {"checkpoints": {f"checkpoint-{step}": {"files": {}} for step in steps}}
        assert (
            list(folder._remove_old_checkpoints("checkpoint-12")) == [f"checkpoint-{step}" for step in expected]
            and checkpoint_steps(tmp_path) == expected
        )


# --- one checkpoint -------------------------------------------------------------------------------------------------

QUICK = ("mixtral", "gemma2", "gpt2")  # experts that are saved under other names, tied weights, transposed weights


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ARCHITECTURES]
)
def test_every_architecture_comes_back_bit_for_bit(name, tmp_path):
    model, tokenizer = make_architecture(name)
    checkpoint.write_model(tmp_path / "c", model, tokenizer)
    start, written = weights(model), model_fingerprint(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    checkpoint.load_weights(tmp_path / "c", model)
    assert same_weights(weights(model), start) and model_fingerprint(model) == written
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c", local_files_only=True)
    assert model_fingerprint(loaded) == written


FOREIGN_FILES = {
    "checkpoint-best/model.safetensors": "theirs", "checkpoint-/x": "theirs", "checkpoint-2-old/x": "theirs",
    "unfinished-novel/chapter-1.txt": "It was", "chapter.unfinished": "a dark", "notes.md": "night",
    "model/config.json": "{}", "grpo_run.json.bak": "{}", "unfinished-checkpoint-2/model.safetensors": "theirs",
    "metrics.jsonl.unfinished": "{}", ".git/HEAD": "ref",
}  # fmt: skip


def write_files(folder: Path, files: dict[str, str]) -> dict[str, bytes]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return {name: text.encode() for name, text in files.items()}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    return cheap_run_until(tmp_path_factory.mktemp("started") / "out", 1)


def test_foreign_files_beside_a_run_stay(undisturbed, tmp_path):
    theirs = write_files(tmp_path / "out", FOREIGN_FILES)
    cheap_run_until(tmp_path / "out", 3)
    assert theirs.items() <= file_contents(tmp_path / "out").items()
    *_, history = cheap_run(tmp_path / "out")
    after = file_contents(tmp_path / "out")
    assert theirs.items() <= after.items()
    assert after.keys() - theirs.keys() == file_contents(undisturbed[0]).keys()
    assert history[-1]["loss"] == undisturbed[2][-1]["loss"]


NEEDED = [
    "checkpoint-500/trainer_state.json", "checkpoint-2/notes.txt", "tokenizer.json", "model.safetensors",
    "tokenizer_config.json", "chat_template.jinja",
]  # fmt: skip
AT_FIRST = ["metrics.jsonl", "completions.jsonl", "tensorboard/x"]


def test_a_name_that_the_run_needs_is_refused_at_the_start(started, tmp_path):
    cases = [(name, resume) for name in NEEDED for resume in (False, True)]
    for number, (name, resume) in enumerate([*cases, *((name, False) for name in AT_FIRST)]):
        folder = tmp_path / str(number) / "out"
        if resume:
            copy_folder(started, folder)
        write_files(folder, {name: "{}"})
        before = file_contents(folder)
        with pytest.raises(FileExistsError, match=f"holds {name.split('/')[0]}, not written by this run"):
            check_folder(make_config(output_dir=str(folder), resume_from_checkpoint=resume))
        assert file_contents(folder) == before


@pytest.mark.parametrize(("taken_step", "name"), [(3, "checkpoint-4/poem.txt"), (4, "config.json")])
def test_a_foreign_file_that_takes_a_name_during_the_run_stops_it_without_loss(taken_step, name, undisturbed, tmp_path):
    folder, needed = tmp_path / "out", name.split("/")[0]
    with pytest.raises(FileExistsError, match=f"holds {needed}, not written by this run"):
        cheap_run(folder, callback=lambda step, _: step == taken_step and write_files(folder, {name: "rose"}))
    assert (folder / name).read_text(encoding="utf-8") == "rose" and not (folder / "tokenizer.json").exists()
    (folder / needed).rename(tmp_path / "away")
    assert_same_end(cheap_run(folder), undisturbed)


def test_a_foreign_file_in_a_checkpoint_stays_when_the_checkpoint_is_removed(tmp_path):
    folder = tmp_path / "out"
    note = {"checkpoint-1/note.txt": "the best so far"}
    cheap_run(folder, callback=lambda step, _: step == 2 and write_files(folder, note), save_steps=1, max_steps=3)
    assert file_contents(folder / "checkpoint-1")["note.txt"] == b"the best so far"
    assert len(cheap_run(folder, save_steps=1, max_steps=4)[2]) == 4, "it stands in nobody's way"


def test_a_broken_checkpoint_with_a_foreign_file_stops_the_run(undisturbed, tmp_path):
    folder = copy_folder(undisturbed[0], tmp_path / "out")
    theirs = write_files(folder, {"checkpoint-4/note.txt": "the best so far"})
    (folder / "checkpoint-4/model.safetensors").unlink()
    with pytest.raises(FileExistsError, match="holds checkpoint-4, not written by this run"):
        cheap_run(folder, callback=lambda *_: pytest.fail("a step was made"))
    assert theirs.items() <= file_contents(folder).items()
    (folder / "checkpoint-4").rename(tmp_path / "away")
    assert_same_end(cheap_run(folder), undisturbed)
