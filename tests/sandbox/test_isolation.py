"""The sandbox of a machine is found, and the commands that start Python in it isolate what runs there."""

import os
from pathlib import Path

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.sandbox import isolation
from grpo_lab.sandbox.isolation import AS_NOBODY, strongest_isolation


def test_the_first_sandbox_that_works_is_taken_and_the_reasons_are_kept(monkeypatch):
    working = {"docker"}
    monkeypatch.setattr(
        isolation, "reason_of_failure", lambda command, **settings: "" if command[0] in working else "not there"
    )
    assert isolation.available_sandbox() == ("docker", "bubblewrap: not there")
    working.clear()
    assert isolation.available_sandbox() == ("", "bubblewrap: not there; docker: not there")


def test_a_container_is_started_with_the_program_and_ended_by_name(monkeypatch, tmp_path):
    """Only the command is checked; no container is started."""
    command, settings = isolation.isolated_command("docker", "name", tmp_path, "run()", tmp_path, [], ("-s",))
    assert command[:2] == ["docker", "run"]
    assert settings == {}
    assert f"{tmp_path}:/package:ro" in command
    program = command[command.index(isolation.IMAGE) :]
    assert program[:3] == [isolation.IMAGE, "python", "-s"]
    assert program[-1].endswith("run()")
    assert isolation.container_kill_command("docker", "name") == ["docker", "kill", "name"]
    assert isolation.container_kill_command("bubblewrap", "name") == []


def test_strongest_isolation_is_used_and_root_drops_its_rights(monkeypatch):
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 1000, raising=False)
    working = {"bwrap", "docker"}
    monkeypatch.setattr(
        isolation, "reason_of_failure", lambda command, **settings: "" if command[0] in working else "not there"
    )
    assert strongest_isolation(trust=False) == "bubblewrap"
    working.remove("bwrap")
    assert strongest_isolation(trust=False) == "docker"
    working.remove("docker")
    assert strongest_isolation(trust=True) == "none"
    with pytest.raises(InputError, match="bubblewrap: not there; docker: not there.*--trust"):
        strongest_isolation(trust=False)
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match="you are root, and what students wrote is never run as root"):
        strongest_isolation(trust=True)
    monkeypatch.setattr(isolation, "reason_of_failure", lambda command, **settings: "" if settings else "not there")
    assert strongest_isolation(trust=True) == "another user"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root starts others' processes")
def test_container_started_by_root_runs_as_nobody(tmp_path):
    _, settings = isolation.isolated_command("another user", "name", Path("package"), "pass", tmp_path, [])
    assert AS_NOBODY.items() <= settings.items()
    assert tmp_path.stat().st_uid == isolation.NOBODY


def test_a_container_has_no_network_and_only_the_package():
    """The command is compared as text, because the test machine need not have Docker."""
    command = isolation.docker_command("name", Path("package"))
    assert command[:3] == ["docker", "run", "--rm"]
    assert command[-1] == "grpo-lab-grade"
    for option in ("--network none", "--read-only", "--cap-drop ALL", "--pids-limit 100", "--user 65534:65534"):
        assert option in " ".join(command)
    assert [command[i + 1] for i, word in enumerate(command) if word == "--volume"] == ["package:/package:ro"]
