"""Damage in the folder of a run: it is named in an error with a remedy, or it is harmless and the result is the same.

The folder holds a finished run: checkpoints of steps 2 and 4, and the trained model. A test damages one file and
resumes the run. Other tests simulate a disk that is full or read-only: the error is one sentence, nothing is lost, and
the run can be resumed afterwards.
"""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from grpo_lab.trainer.run import folder as run_folder
from tests.support import resuming
from tests.support.resuming import assert_same_end, cheap_run, copy_folder, file_contents, metrics_in, newest_checkpoint


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate_file(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def edit_and_sign(path: Path, **changes) -> None:
    """Edit a manifest and write the right checksum for it."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    content.pop("checksum")
    path.write_text(json.dumps({"checksum": run_folder.manifest_checksum(content)} | content), encoding="utf-8")


# Damage in the newest checkpoint, after which the one before it is loaded: (name, function that damages it, message).
IN_CHECKPOINT = [
    (".", shutil.rmtree, "chat_template.jinja is missing"),
    ("model.safetensors", truncate_file, "model.safetensors is not what was written: its size or its checksum differs"),
    ("model.safetensors", flip, "model.safetensors is not what was written"),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("trainer_state.json", lambda path: path.write_text("{}", encoding="utf-8"), "trainer_state.json is not what was"),
    ("trainer_state.json", lambda path: edit(path, '"step": 4', '"step": 3'), "trainer_state.json is not what was"),
    ("reference", shutil.rmtree, "reference/config.json is missing"),
    ("reference/model.safetensors", flip, "reference/model.safetensors is not what was written"),
]
# Damage that nothing depends on, or that is overwritten in any case: nothing is reported.
HARMLESS = [
    ("metrics.jsonl", lambda path: path.write_text(path.read_text() + '{"step": 5', encoding="utf-8")),
    ("grpo_config.json", Path.unlink),
    ("model.safetensors", flip),
    ("config.json", lambda path: path.write_text("{", encoding="utf-8")),
    ("grpo_run.lock", lambda path: path.write_text("{", encoding="utf-8")),
    ("grpo_run.unfinished/checkpoint-6/reference", lambda path: path.mkdir(parents=True)),
    ("checkpoint-2", shutil.rmtree),
]
# Damage of the manifest, after which the run is unknown: it stops and changes nothing.
STOPS = [
    (Path.unlink, "resume_from_checkpoint is True; .* which holds no grpo_run.json; .* in a new folder"),
    (truncate_file, "grpo_run.json' is not what the run wrote: it was edited, cut or damaged.*Restore it from"),
    (flip, "grpo_run.json' is not what the run wrote"),
    (lambda path: edit(path, "checkpoint-4", "checkpoint-3"), "grpo_run.json' is not what the run wrote"),
    (
        lambda path: edit_and_sign(path, extra=2),
        "is not what the run wrote.*resume with the version of grpo_lab that wrote",
    ),
]


@pytest.mark.parametrize(
    ("name", "spoil", "problem"),
    [pytest.param(*case, marks=[] if case[1] is flip else pytest.mark.slow) for case in IN_CHECKPOINT],
)
def test_a_broken_newest_checkpoint_is_named_and_the_one_before_it_taken(
    name, spoil, problem, undisturbed, tmp_path, capsys
):
    folder = copy_folder(undisturbed[0], tmp_path / "out")
    spoil(folder / "checkpoint-4" / name)
    assert_same_end(cheap_run(folder), undisturbed)
    output = capsys.readouterr().out
    assert re.search(rf"checkpoint-4' is broken \({problem}.*\)\nResumed at step 2 of 4 from .*checkpoint-2", output)


def test_damaged_metrics_are_written_again(undisturbed, tmp_path):
    for number, spoil in enumerate([Path.unlink, truncate_file, flip]):
        folder = copy_folder(undisturbed[0], tmp_path / str(number) / "out")
        spoil(folder / "metrics.jsonl")
        assert_same_end(cheap_run(folder), undisturbed)
        assert file_contents(folder)["metrics.jsonl"] == file_contents(undisturbed[0])["metrics.jsonl"]


@pytest.mark.parametrize(
    ("name", "spoil"), [pytest.param(*case, marks=[pytest.mark.slow] * (n > 0)) for n, case in enumerate(HARMLESS)]
)
def test_damage_to_files_that_no_run_needs_changes_no_resumed_run(name, spoil, undisturbed, tmp_path, capsys):
    folder = copy_folder(undisturbed[0], tmp_path / "out")
    spoil(folder / name)
    end = cheap_run(folder)
    assert capsys.readouterr().out.startswith("Resumed at step 4 of 4 from")
    if "checkpoint-2" not in name:
        assert_same_end(end, undisturbed)


@pytest.mark.parametrize(("spoil", "message"), STOPS)
def test_a_manifest_that_cannot_be_trusted_stops_the_run_and_nothing_is_touched(spoil, message, undisturbed, tmp_path):
    folder = copy_folder(undisturbed[0], tmp_path / "out")
    spoil(folder / "grpo_run.json")
    old_contents = file_contents(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        cheap_run(folder, resume=True)
    assert file_contents(folder) == old_contents


def test_without_a_good_checkpoint_each_is_named_and_nothing_is_removed(undisturbed, tmp_path, capsys):
    folder = copy_folder(undisturbed[0], tmp_path / "out")
    for name in ("checkpoint-2", "checkpoint-4"):
        flip(folder / name / "model.safetensors")
    old_contents = file_contents(folder)
    with pytest.raises(ValueError, match="^no checkpoint in .*out' is whole; restore .*. Nothing has been removed"):
        cheap_run(folder)
    assert re.search("4' is broken .model.safe.*\n.*2' is broken .model.safe", capsys.readouterr().out)
    assert file_contents(folder) == old_contents
    shutil.rmtree(folder / "checkpoint-2")
    shutil.copytree(undisturbed[0] / "checkpoint-2", folder / "checkpoint-2")
    assert_same_end(cheap_run(folder), undisturbed)


# --- the disk -------------------------------------------------------------------------------------------------------

FULL, CLOSED = errno.ENOSPC, errno.EACCES


@pytest.mark.parametrize(
    ("fault", "every"),
    [(FULL, 29), *(pytest.param(fault, every, marks=pytest.mark.slow) for fault, every in ((FULL, 2), (CLOSED, 5)))],
)
def test_a_run_whose_disk_fails_from_any_change_on_ends_with_a_remedy_and_can_go_on(
    fault, every, counted_run, tmp_path
):
    changes, expected = counted_run
    message = (
        rf"^\[Errno {fault}\] '.*' could not be read or written \({re.escape(os.strerror(fault))}\): fix that, then "
    )
    message += r"(start again, or choose another folder|go on with resume_from_checkpoint=True .* (yet|is saved)\.)$"
    for failing_change in range(0, changes, every):
        folder = tmp_path / str(failing_change) / "out"
        try:
            _, end = resuming.cheap_run_under(folder, failing_change, fault)
        except OSError as error:
            assert re.match(message, str(error)) and error.errno == fault, (failing_change, str(error))
            assert "\n" not in str(error)
            assert_same_end(cheap_run(folder), expected)
        else:
            last_changes = 16 if fault == FULL else 3
            assert failing_change >= changes - last_changes, "only renames and tidying at the very end do without"
            assert metrics_in(end[0])[-1]["step"] == 4


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_removed(tmp_path, counted_run):
    def full(*arguments, **keywords):
        raise OSError(FULL, os.strerror(FULL), "optimizer.safetensors")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="optimizer.safetensors"):
        patch.setattr("grpo_lab.trainer.run.checkpoint.file_digests", full)
        cheap_run(tmp_path / "out")
    assert not (tmp_path / "out/grpo_run.unfinished").exists() and newest_checkpoint(tmp_path / "out") is None
    assert_same_end(cheap_run(tmp_path / "out"), counted_run[1])


def test_a_checkpoint_without_permission_to_read_does_not_count_as_broken(tmp_path, counted_run):
    folder = resuming.cheap_run_until(tmp_path / "out", 3)
    old_contents = file_contents(folder)

    def closed(path):
        raise PermissionError(CLOSED, os.strerror(CLOSED), str(path))

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(PermissionError, match="could not be read or written .*fix that, then go on"),
    ):
        patch.setattr("grpo_lab.trainer.run.checkpoint.file_digests", closed)
        cheap_run(folder)
    assert file_contents(folder) == old_contents
    assert_same_end(cheap_run(folder), counted_run[1])
