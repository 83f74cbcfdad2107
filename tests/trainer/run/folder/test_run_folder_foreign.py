"""Files of others in the folder of a run are never deleted, moved or overwritten."""

from pathlib import Path

import pytest

from grpo_lab.trainer.run.folder import check_folder
from tests.support.resuming import assert_same_end, cheap_run, cheap_run_until, copy_folder, file_contents
from tests.support.small_policy import make_config

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
