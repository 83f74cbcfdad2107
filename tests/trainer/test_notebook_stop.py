"""The button that interrupts a notebook's kernel does what Ctrl-C does in a shell; in a kernel for real."""

import os
import time
from pathlib import Path

import pytest

from tests.support.resuming import assert_same_end, cheap_run

START = """
from pathlib import Path
from tests.support.resuming import cheap_run
def go_on(step, metrics):
    Path({ready!r}).write_text(str(step))
    while step == 3 and not Path({sent!r}).exists():
        pass
cheap_run(Path({folder!r}), callback=go_on)
"""


@pytest.mark.slow
def test_the_button_saves_the_step_at_hand_and_the_next_cell_goes_on(tmp_path):
    manager = pytest.importorskip("jupyter_client").manager
    ready, sent, folder = (tmp_path / name for name in ("ready", "sent", "out"))
    kernel = manager.KernelManager(kernel_name="python3")
    kernel.start_kernel(cwd=str(Path(__file__).parents[2]), env=os.environ | {"OMP_NUM_THREADS": "1"})
    client = kernel.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        code = START.format(ready=str(ready), sent=str(sent), folder=str(folder))
        client.execute(code, stop_on_error=False)
        while not (ready.exists() and ready.read_text(encoding="utf-8") == "3"):
            time.sleep(0.01)
        kernel.interrupt_kernel()
        time.sleep(0.2)
        sent.touch()
        reply = client.get_shell_msg(timeout=120)["content"]
        assert (reply["status"], reply["ename"]) == ("error", "Stopped")
        assert reply["evalue"].startswith("Stopped after step 3 of 4 by Ctrl-C.")
        assert reply["evalue"].endswith("and everything else as it was.")
        client.execute(code)
        assert client.get_shell_msg(timeout=120)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    whole = cheap_run(tmp_path / "whole")
    (folder / "checkpoint-3").rename(tmp_path / "checkpoint-3")
    (tmp_path / "whole" / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    assert_same_end((folder, *whole[1:]), whole)
