"""The script for fifteen minutes on a GPU keeps its records when a command or the script itself is interrupted."""

import json
import subprocess
import sys
import time

import pytest

from tests.support.scripts import load_script

minutes = load_script("notebooks/runs/gpu_minutes.py")
PRINTS = [sys.executable, "-c", "print('a line'); print('{\"peak\": 3}')"]
HANGS = [sys.executable, "-c", "import time; print('begun'); time.sleep(600)"]


def start(monkeypatch, tmp_path, commands):
    monkeypatch.setattr(minutes, "commands", lambda *_: commands)
    monkeypatch.setattr(sys, "argv", ["gpu_minutes.py", "memory", "--output", str(tmp_path)])
    minutes.main()


def record(tmp_path):
    return json.loads((tmp_path / "memory.json").read_text(encoding="utf-8"))


def test_the_output_of_a_command_that_takes_too_long_is_recorded_and_the_next_begins(monkeypatch, tmp_path):
    run = subprocess.run

    def run_until_it_has_begun(command, *, timeout, **keywords):
        if command != HANGS:
            return run(command, timeout=timeout, **keywords)
        with subprocess.Popen(command, **keywords) as process:
            while not (tmp_path / "memory-0.txt").read_text(encoding="utf-8"):
                time.sleep(0.05)
            process.kill()
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(minutes.subprocess, "run", run_until_it_has_begun)
    with pytest.raises(SystemExit) as left:
        start(monkeypatch, tmp_path, [(HANGS, 1), (PRINTS, 60)])
    assert left.value.code == 1
    cut_off, done = record(tmp_path)
    assert (cut_off["exit"], cut_off["result"]) == (None, "begun")
    assert (done["exit"], done["result"]) == (0, {"peak": 3})


def test_an_interrupted_script_has_recorded_its_finished_and_unfinished_commands(monkeypatch, tmp_path):
    run, calls = minutes.run, []

    def cut_off_at_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(minutes, "run", cut_off_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        start(monkeypatch, tmp_path, [(PRINTS, 60)] * 3)
    done, begun = record(tmp_path)
    assert done["result"] == {"peak": 3} and begun["exit"] == "not yet"


@pytest.mark.parametrize("part", ["tests", "memory", "trl", "qwen"])
def test_each_part_is_on_the_gpu_unless_it_is_tried_out_and_fits_into_a_call(part, tmp_path):
    real, tried = (minutes.commands(part, try_out, tmp_path) for try_out in (False, True))
    assert all(limit <= 600 for _, limit in real)
    if part != "tests":
        assert len(tried) >= 1 and all("cuda" in str(command) and "cpu" not in str(command[3:]) for command, _ in real)
        assert not any("cuda" in str(command) for command, _ in tried)
