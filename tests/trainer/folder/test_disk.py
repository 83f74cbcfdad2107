"""A disk that is full, read-only or closed: one sentence, nothing lost, and the run goes on once that is mended."""

import errno
import os
import re

import pytest

from tests.support.resuming import (
    assert_same_end,
    cheap_run,
    cheap_run_under,
    cheap_run_until,
    contents,
    metrics_in,
    newest,
)

FULL, CLOSED = errno.ENOSPC, errno.EACCES


@pytest.mark.parametrize(
    ("fault", "every"),
    [(FULL, 29), *(pytest.param(fault, every, marks=pytest.mark.slow) for fault, every in ((FULL, 2), (CLOSED, 5)))],
)
def test_from_any_change_on_nothing_can_be_written(fault, every, counted, tmp_path):
    changes, want = counted
    said = (
        rf"^\[Errno {fault}\] '.*' could not be read or written \({re.escape(os.strerror(fault))}\): mend that, then "
    )
    said += r"(start again, or choose another folder|go on with resume_from_checkpoint=True .* (yet|is saved)\.)$"
    for at in range(0, changes, every):
        folder = tmp_path / str(at) / "out"
        try:
            _, end = cheap_run_under(folder, at, fault)
        except OSError as error:
            assert re.match(said, str(error)) and error.errno == fault, (at, str(error))
            assert "\n" not in str(error)
            assert_same_end(cheap_run(folder), want)
        else:
            assert at >= changes - (16 if fault == FULL else 3), "only renames and tidying at the very end do without"
            assert metrics_in(end[0])[-1]["step"] == 4


def test_a_checkpoint_that_finds_no_room_gives_back_what_it_took(tmp_path, counted):
    def full(*arguments, **keywords):
        raise OSError(FULL, os.strerror(FULL), "optimizer.safetensors")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="optimizer.safetensors"):
        patch.setattr("grpo_lab.trainer.folder.checkpoint.flushed", full)
        cheap_run(tmp_path / "out")
    assert not (tmp_path / "out/grpo_run.unfinished").exists() and newest(tmp_path / "out") is None
    assert_same_end(cheap_run(tmp_path / "out"), counted[1])


def test_a_checkpoint_that_cannot_be_read_is_no_broken_one(tmp_path, counted):
    folder = cheap_run_until(tmp_path / "out", 3)
    before = contents(folder)

    def closed(path):
        raise PermissionError(CLOSED, os.strerror(CLOSED), str(path))

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(PermissionError, match="could not be read or written .*mend that, then go on"),
    ):
        patch.setattr("grpo_lab.trainer.folder.checkpoint._described", closed)
        cheap_run(folder)
    assert contents(folder) == before
    assert_same_end(cheap_run(folder), counted[1])
