"""The sandbox of a machine is found, and the commands that start Python in it isolate what runs there."""

from grpo_lab.sandbox import isolation


def test_the_first_sandbox_that_works_is_taken_and_the_reasons_are_kept(monkeypatch):
    working = {"docker"}
    monkeypatch.setattr(isolation, "_fails", lambda command, **settings: "" if command[0] in working else "not there")
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
