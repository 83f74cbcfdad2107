"""Two runs in one folder: the second is refused, and no run that has ended is in the way."""

import subprocess
import sys

import pytest

from grpo_lab.trainer.folder.run_folder import LOCK
from tests.support.resuming import assert_same_end, cheap_run, contents

HELD = r"^output_dir is '.*out', where another run is at work; wait for its end, stop it, or choose another folder"


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


HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_lock_of_another_process_holds_until_it_dies(undisturbed, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    words = [sys.executable, "-c", HOLDER, str(folder / LOCK)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=HELD):
            cheap_run(folder)
        holder.kill()
    assert (folder / LOCK).exists(), "it had no chance to tidy up"
    assert_same_end(cheap_run(folder), undisturbed)
