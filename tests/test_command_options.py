"""Tests of the declared options of the commands: the code that they can name, and that a file of settings may name."""

from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.base.option import NamedCode, option, option_specs
from grpo_lab.command_options import (
    COMMAND_OPTIONS,
    MAY_BE_IN_FILE,
    check_no_code_named,
    named_code,
    option_actions,
    options_naming_code,
)
from grpo_lab.config import SETTINGS
from grpo_lab.rewards.named import REWARD_FUNCTIONS
from grpo_lab.tasks import TASKS
from grpo_lab.train import options as train_options
from grpo_lab.train.options import train_parser


def test_settings_file_may_name_only_code_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").touch()
    Path("mine.csv").touch()
    Path("school").mkdir()
    generator = "gym:chain_sum:max_terms=2,min_terms=1"
    for task in [
        None,
        *TASKS,
        generator,
        "mine.jsonl",
        str(tmp_path / "mine.jsonl"),
        "mine.csv",
        "school",
        "gsm8k:school",
    ]:
        for rewards in (None, [*REWARD_FUNCTIONS], ["accuracy_reward"]):
            check_no_code_named({"task": task, "reward_funcs": rewards, "system_prompt": "a:b"}, Path("run.json"))
    monkeypatch.setattr(Path, "exists", lambda self: self.name != "none.jsonl")  # the network shares seem to exist
    shares = [
        "//host/share",
        r"\\host\share",
        r"\\host\a.jsonl",
        "//host/a.jsonl",
        r"\??\UNC\host\a.jsonl",
        r"/\host/a.jsonl",
        r"gsm8k:\\host\a",
    ]
    looked_at = []
    monkeypatch.setattr(Path, "is_dir", lambda self: looked_at.append(self) or False)
    for task in ["none.jsonl", "mine.exe", "them/sums", "gym:countdown:operators=['a(1)']", 5, ["sums"], *shares]:
        with pytest.raises(InputError, match="task is .* in 'run.json'; from a file only .*, type --task ") as caught:
            check_no_code_named({"task": task}, Path("run.json"))
        assert caught.value.argument == "task"
    assert not [path for path in looked_at if "host" in str(path)], "even a look lets Windows log in to the host"
    monkeypatch.undo()
    for rewards in (["accuracy", "evil:pay"], "evil:pay", [5], {"evil:pay": 1}):
        with pytest.raises(InputError, match="reward_funcs is .*if you trust it, type --reward_funcs "):
            check_no_code_named({"reward_funcs": rewards}, Path("run.json"))


def test_each_option_of_train_is_declared_with_the_code_that_it_can_name():
    """The declarations are a security boundary: an option that nobody classified fails here."""
    assert option_actions(train_parser()).keys() - {"help"} == (SETTINGS | COMMAND_OPTIONS).keys() - {"config"}
    assert not SETTINGS.keys() & COMMAND_OPTIONS.keys()
    assert {name: kind for name in SETTINGS | COMMAND_OPTIONS if (kind := named_code(name)) != NamedCode.NOTHING} == {
        "task": NamedCode.TASK,
        "reward_funcs": NamedCode.REWARDS,
        "loss_type": NamedCode.FORMULA,
        "advantage": NamedCode.FORMULA,
        "model": NamedCode.PATH,
        "output_dir": NamedCode.PATH,
        "dataset_config": NamedCode.PATH,
        "tools": NamedCode.IMPORT,
        "environment": NamedCode.IMPORT,
    }
    assert MAY_BE_IN_FILE.keys() == set(NamedCode)


def test_option_without_a_declaration_may_not_be_in_a_file():
    assert options_naming_code({"verifier": "evil:pay", "other": None}) == {"verifier": ["--verifier", "evil:pay"]}


def test_option_that_can_name_code_has_to_say_which():
    @dataclass(frozen=True)
    class Classified:
        path: str = option("", "help", named_code=NamedCode.NOTHING)
        choice: str = option("a", "help", choices=("a",))
        number: int | None = option(0, "help")
        numbers: list[float] | None = option(None, "help")
        switch: bool = option(False, "help")

    assert {spec.named_code for spec in option_specs(Classified).values()} == {NamedCode.NOTHING}
    for annotation, choices in [
        (str, ()), (str | None, ()), (list[str] | None, ()), (Path | None, ()), (str, {"a": None}),
    ]:  # fmt: skip
        unclassified = make_dataclass("Unclassified", [("name", annotation, option("a", "help", choices=choices))])
        with pytest.raises(TypeError, match="option 'name' has no named_code"):
            option_specs(unclassified)


@pytest.mark.parametrize("path", ["//host/share", r"\\host\share", r"\??\UNC\host\share", ["//host/share"]])
@pytest.mark.parametrize("name", ["model", "output_dir", "dataset_config"])
def test_a_network_path_has_to_be_typed(name, path):
    with pytest.raises(InputError, match=f"{name} is .*from a file no network path .*, type --{name} ") as caught:
        check_no_code_named({name: path}, Path("run.json"))
    assert caught.value.argument == name
    for local in ("out/share", "/out/share", "owner/name", "C:/share", "tiny", None, 5):
        check_no_code_named({name: local}, Path("run.json"))


def test_an_output_dir_on_a_share_is_not_touched_unless_it_is_typed(tmp_path, monkeypatch):
    """To parse an output_dir is to write to it, so that of a file is refused, or left out, before."""
    monkeypatch.chdir(tmp_path)
    touched = []
    monkeypatch.setattr(train_options, "writable_folder", lambda text: touched.append(text) or Path(text))
    Path("run.yaml").write_text("output_dir: //host/share\n", encoding="utf-8")
    with pytest.raises(InputError, match="output_dir is '//host/share' in 'run.yaml'; from a file no network path"):
        train_options.read_options(["--config", "run.yaml"])
    assert train_options.read_options(["--config", "run.yaml", "--output_dir", "out"]).output_dir == "out"
    Path("moved").mkdir()
    Path("moved", SETTINGS_FILE).write_text('{"output_dir": "//host/share", "model": "tiny"}', encoding="utf-8")
    resumed = train_options.read_options(["--resume_from_checkpoint", "moved"])
    assert resumed.output_dir == "moved" and touched == ["out"]


def test_the_command_that_resumes_a_run_types_a_model_on_a_share_again(monkeypatch):
    monkeypatch.setattr(train_options, "writable_folder", Path)
    command = train_options.read_options(["--output_dir", "//host/run", "--model", "//host/model"]).resuming_command()
    assert "--model" in command and "--resume_from_checkpoint" in command and "--output_dir" not in command


@pytest.mark.parametrize("name", ["loss_type", "advantage", "tools", "environment", "reward_funcs", "task"])
def test_code_of_a_user_has_to_be_typed(name):
    value = ["mine.py:own"] if name in ("tools", "reward_funcs") else "mine.py:own"
    with pytest.raises(InputError, match=f"type --{name} mine.py:own"):
        check_no_code_named({name: value}, Path("run.json"))
