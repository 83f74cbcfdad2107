"""Two runs in one folder: the second is refused."""

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
