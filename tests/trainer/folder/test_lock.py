"""Two runs in one folder: the second is refused by name, and no run that has ended is in the way."""

import json
import os
import subprocess
import sys
import threading

import pytest

from grpo_lab.trainer.folder import lock
from grpo_lab.trainer.folder.lock import LOCK, Lock
from tests.support.resuming import assert_same_end, cheap_run, contents

HELD = r"^output_dir is '.*out', where another run is at work \(process \d+ on .*, since 20.*\); wait for its end"


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_while_the_first_goes_on_and_ends_well(resume, undisturbed, tmp_path):
    folder, refused = tmp_path / "out", []

    def second(step, metrics):
        if resume or step == 1:
            before = contents(folder)
            with pytest.raises(BlockingIOError, match=HELD):
                cheap_run(folder, resume=resume)
            refused.append(step)
            assert contents(folder) == before

    assert_same_end(cheap_run(folder, callback=second), undisturbed)
    assert refused and not (folder / LOCK).exists()


def test_two_runs_that_begin_at_the_same_moment_are_one_run(undisturbed, tmp_path):
    """Threads of one process: whoever comes second finds a lock, or a run."""
    folder, ends, gate = tmp_path / "out", [], threading.Barrier(4)

    def begin():
        gate.wait()
        try:
            ends.append(cheap_run(folder, resume=False))
        except (BlockingIOError, FileExistsError) as error:
            ends.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [end for end in ends if isinstance(end, tuple)]
    assert len(done) == 1 and len(ends) == 4
    assert len(done[0][2]) == 4, "the random numbers of threads mix; the files do not"


HOLDER = """
import runpy, sys
from pathlib import Path
with runpy.run_path(sys.argv[1])["Lock"](Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_lock_of_another_process_holds_until_it_dies(undisturbed, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=f"process {holder.pid} on"):
            cheap_run(folder)
        holder.kill()
    assert (folder / LOCK).exists(), "it had no chance to tidy up"
    assert_same_end(cheap_run(folder), undisturbed)


@pytest.mark.parametrize(
    "left", ["", "{", json.dumps({"pid": os.getpid(), "host": "here", "since": "now"})], ids=["empty", "cut", "whole"]
)
def test_a_file_that_is_left_over_is_no_obstacle(left, tmp_path):
    (tmp_path / LOCK).write_text(left, encoding="utf-8")
    with Lock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text(encoding="utf-8"))["pid"] == os.getpid()
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on"):
            Lock(tmp_path).__enter__()
    assert not (tmp_path / LOCK).exists()


def test_a_holder_that_has_not_signed_yet_is_refused_too(tmp_path):
    with Lock(tmp_path):
        (tmp_path / LOCK).write_text("", encoding="utf-8")
        with pytest.raises(BlockingIOError, match="a process that has just begun"):
            Lock(tmp_path).__enter__()


def test_the_lock_ends_with_an_error_too(tmp_path):
    def fail(step, metrics):
        raise RuntimeError("full moon")

    with pytest.raises(RuntimeError, match="full moon"):
        cheap_run(tmp_path / "out", callback=fail)
    assert not (tmp_path / "out" / LOCK).exists()
    assert len(cheap_run(tmp_path / "out")[2]) == 4


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no open file")
def test_a_lock_taken_from_a_file_that_was_just_removed_counts_for_nothing(tmp_path, monkeypatch):
    """The run before removes the file between our opening and our locking it: somebody else may hold a new one."""
    take, removed = Lock._take, []

    def late(self, file):
        if not removed:
            self.path.unlink()
            removed.append(True)
        return take(self, file)

    monkeypatch.setattr(Lock, "_take", late)
    with Lock(tmp_path):
        assert (tmp_path / LOCK).exists()
        with pytest.raises(BlockingIOError):
            Lock(tmp_path).__enter__()


@pytest.mark.skipif(os.name == "nt", reason="flock is POSIX")
def test_a_file_system_without_locks_is_said_aloud(tmp_path, monkeypatch, capsys):
    import errno
    import fcntl

    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with Lock(tmp_path):
        assert "is on a file system without locks" in capsys.readouterr().out
