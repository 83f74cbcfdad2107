"""Whatever is broken in the folder of a run is named, with a way out; or it is harmless, and the end is the same.

A whole run lies there: checkpoints of steps 2 and 4, and the trained model. One thing in it is spoilt; then it is
resumed.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grpo_lab.trainer.folder import manifest
from tests.support.resuming import assert_same_end, cheap_run, contents, copy_of
from tests.support.worlds import make_world


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return cheap_run(tmp_path_factory.mktemp("whole") / "out")


def flip(path: Path, at: float = 0.5) -> None:
    """One bit, at this share of the file."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def cut(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def other_shapes(path: Path) -> None:
    save_file({name: tensor[..., :-1].contiguous() for name, tensor in load_file(path).items()}, path)


def other_model(folder: Path) -> None:
    make_world(seed=9, num_hidden_layers=1)[0].save_pretrained(folder)


def step_of_another(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "checkpoint-2", folder)


def signed(path: Path, **changes) -> None:
    """A manifest that was edited by someone who knows its checksum."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    content.pop("checksum")
    path.write_text(json.dumps({"checksum": manifest._checksum(content)} | content), encoding="utf-8")


def empty_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


# In the newest checkpoint: the one before it is taken. (name, what is done to it, what is said to be wrong)
IN_CHECKPOINT = [
    (".", empty_folder, "chat_template.jinja is missing"),
    (".", shutil.rmtree, "chat_template.jinja is missing"),
    (".", step_of_another, r"\S+ (has [\d,]+ bytes; expected|is not what was written)"),
    (".", other_model, r"model.safetensors is not what was written"),
    ("model.safetensors", Path.unlink, "model.safetensors is missing"),
    ("model.safetensors", lambda path: path.write_bytes(b""), r"model.safetensors has 0 bytes; expected [\d,]+"),
    ("model.safetensors", cut, r"model.safetensors has [\d,]+ bytes; expected [\d,]+"),
    ("model.safetensors", flip, "model.safetensors is not what was written: its checksum differs"),
    ("model.safetensors", lambda path: flip(path, 0.0), "model.safetensors is not what was written"),
    ("model.safetensors", lambda path: flip(path, 0.9999), "model.safetensors is not what was written"),
    ("model.safetensors", other_shapes, "model.safetensors has"),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("optimizer.safetensors", lambda path: cut(path, 0.99), "optimizer.safetensors has"),
    ("optimizer.safetensors", flip, "optimizer.safetensors is not what was written"),
    (
        "optimizer.safetensors",
        lambda path: path.write_bytes(b"x" * path.stat().st_size),
        "optimizer.safetensors is not",
    ),
    ("trainer_state.json", Path.unlink, "trainer_state.json is missing"),
    ("trainer_state.json", cut, "trainer_state.json has"),
    ("trainer_state.json", lambda path: path.write_text("{}", encoding="utf-8"), "trainer_state.json has 2 bytes"),
    ("trainer_state.json", lambda path: edit(path, '"step": 4', '"step": 3'), "trainer_state.json is not what was"),
    ("config.json", Path.unlink, "config.json is missing"),
    ("config.json", lambda path: edit(path, '"hidden_size": 16', '"hidden_size": 32'), "config.json is not what was"),
    ("tokenizer.json", cut, "tokenizer.json has"),
    ("reference", shutil.rmtree, "reference/config.json is missing"),
    ("reference/model.safetensors", flip, "reference/model.safetensors is not what was written"),
    ("reference/model.safetensors", other_shapes, "reference/model.safetensors has"),
]
# Elsewhere: it is said, and put right.
PUT_RIGHT = [
    ("metrics.jsonl", Path.unlink, "metrics.jsonl' is missing: it is written anew from checkpoint-4"),
    ("metrics.jsonl", cut, "metrics.jsonl' is not as the run wrote it .edited, cut or damaged.: it is written anew"),
    ("metrics.jsonl", flip, "metrics.jsonl' is not as the run wrote it"),
    ("metrics.jsonl", lambda path: edit(path, '"reward": 0.5', '"reward": 0.9'), "metrics.jsonl' is not as the run"),
    ("metrics.jsonl", lambda path: path.write_bytes(b""), "metrics.jsonl' is not as the run wrote it"),
    ("metrics.jsonl", lambda path: path.write_bytes(b"\xff" * 99), "metrics.jsonl' is not as the run wrote it"),
    ("grpo_config.json", Path.unlink, "grpo_config.json' is missing: it is written anew from grpo_run.json"),
    ("grpo_config.json", cut, "grpo_config.json' is not as the run wrote it"),
    ("grpo_config.json", lambda path: edit(path, "0.01", "0.02"), "grpo_config.json' is not as the run wrote it"),
    ("grpo_config.json", lambda path: path.write_bytes(b"\xff\xfe"), "grpo_config.json' is not as the run wrote it"),
]
# Nothing depends on it: nothing is said.
HARMLESS = [
    ("metrics.jsonl", lambda path: path.write_text(path.read_text() + '{"step": 5', encoding="utf-8"), ""),
    ("metrics.jsonl", lambda path: path.write_text(path.read_text() + "{}\n" * 9, encoding="utf-8"), ""),
    ("model.safetensors", Path.unlink, ""),
    ("model.safetensors", flip, ""),
    ("config.json", lambda path: path.write_text("{", encoding="utf-8"), ""),
    ("grpo_run.lock", lambda path: path.write_text("{", encoding="utf-8"), ""),
    ("grpo_run.unfinished/checkpoint-6/reference", lambda path: path.mkdir(parents=True), ""),
    ("checkpoint-2", shutil.rmtree, ""),
    ("checkpoint-2/model.safetensors", flip, ""),
]
# Nobody can know what the run was: it stops, and touches nothing.
STOPS = [
    (
        "grpo_run.json",
        Path.unlink,
        r"resume_from_checkpoint is True; .* of which grpo_run.json is missing .*new folder",
    ),
    ("grpo_run.json", cut, r"grpo_run.json' is not what the run wrote: it was edited, cut or damaged.*Restore it from"),
    ("grpo_run.json", flip, "grpo_run.json' is not what the run wrote"),
    ("grpo_run.json", lambda path: path.write_bytes(b""), "grpo_run.json' is not what the run wrote"),
    ("grpo_run.json", lambda path: path.write_text("[]", encoding="utf-8"), "grpo_run.json' is not what the run wrote"),
    ("grpo_run.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "grpo_run.json' is not what the run wrote"),
    ("grpo_run.json", lambda path: edit(path, '"step": 4', '"step": 2'), "grpo_run.json' is not what the run wrote"),
    ("grpo_run.json", lambda path: signed(path, format=2), "grpo_run.json' has format 2; expected 1: resume with the"),
    ("grpo_run.json", lambda path: signed(path, extra=2), "grpo_run.json' has format 1"),
]


def cases(table, quick):
    """All of a table; those that are not among the quick ones of it are for the long tests."""
    return [
        pytest.param(*case, id=f"{case[0]}-{index}", marks=[] if index in quick else [pytest.mark.slow])
        for index, case in enumerate(table)
    ]


@pytest.mark.parametrize(("name", "spoil", "what"), cases(IN_CHECKPOINT, {0, 7, 17}))
def test_a_broken_newest_checkpoint_is_named_and_the_one_before_it_taken(name, spoil, what, whole, tmp_path, capsys):
    folder = copy_of(whole[0], tmp_path / "out")
    spoil(folder / "checkpoint-4" / name)
    assert_same_end(cheap_run(folder), whole)
    said = capsys.readouterr().out
    assert re.search(rf"checkpoint-4' is broken \({what}.*\); checkpoint-2, which is older, is taken", said)
    assert "Resumed at step 2 of 4 from" in said


@pytest.mark.parametrize(("name", "spoil", "message"), cases(PUT_RIGHT, {0, 7}))
def test_what_can_be_put_right_is_and_aloud(name, spoil, message, whole, tmp_path, capsys):
    folder = copy_of(whole[0], tmp_path / "out")
    spoil(folder / name)
    assert_same_end(cheap_run(folder), whole)
    assert re.search(message, capsys.readouterr().out)
    assert contents(folder) == contents(whole[0])


@pytest.mark.parametrize(("name", "spoil", "message"), cases(HARMLESS, {0}))
def test_what_nothing_depends_on_does_no_harm(name, spoil, message, whole, tmp_path, capsys):
    folder = copy_of(whole[0], tmp_path / "out")
    spoil(folder / name)
    end = cheap_run(folder)
    assert capsys.readouterr().out.startswith("Resumed at step 4 of 4 from")
    if "checkpoint-2" not in name:
        assert_same_end(end, whole)


@pytest.mark.parametrize(("name", "spoil", "message"), cases(STOPS, range(9)))
def test_what_cannot_be_known_stops_the_run_and_nothing_is_touched(name, spoil, message, whole, tmp_path):
    folder = copy_of(whole[0], tmp_path / "out")
    spoil(folder / name)
    before = contents(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        cheap_run(folder, resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize("spoil", [flip, Path.unlink], ids=["flipped", "missing"])
def test_without_a_good_checkpoint_each_is_named_and_nothing_is_removed(spoil, whole, tmp_path):
    folder = copy_of(whole[0], tmp_path / "out")
    for name in ("checkpoint-2", "checkpoint-4"):
        spoil(folder / name / "model.safetensors")
    before = contents(folder)
    with pytest.raises(
        ValueError,
        match=r"^no checkpoint in .*out' is whole \(checkpoint-4: model.safetensors .*; checkpoint-2: model.saf.*\); "
        r"restore one from a copy, or start a new run in another folder. Nothing has been removed",
    ):
        cheap_run(folder)
    assert contents(folder) == before
    shutil.rmtree(folder / "checkpoint-2")
    shutil.copytree(whole[0] / "checkpoint-2", folder / "checkpoint-2")
    assert_same_end(cheap_run(folder), whole)


@pytest.mark.parametrize("name", ["adapter_config.json", pytest.param("pytorch_model.bin", marks=pytest.mark.slow)])
def test_a_file_put_into_a_checkpoint_changes_nothing(name, whole, tmp_path, capsys):
    """Although transformers would read it."""
    folder = copy_of(whole[0], tmp_path / "out")
    (folder / "checkpoint-4" / name).write_text('{"weight_map": {"x": "y.safetensors"}}', encoding="utf-8")
    _, model, history = cheap_run(folder)
    (folder / "checkpoint-4" / name).unlink()
    assert "broken" not in capsys.readouterr().out
    assert_same_end((folder, model, history), whole)


@pytest.mark.parametrize("name", ["checkpoint-4", "checkpoint-4/model.safetensors"])
def test_something_else_in_the_place_of_a_checkpoint_is_not_removed(name, whole, tmp_path):
    folder = copy_of(whole[0], tmp_path / "out")
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("a list of checkpoints", encoding="utf-8")
    else:
        path.unlink()
        path.mkdir()
        (path / "theirs").write_text("theirs", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds checkpoint-4, which is not this run's"):
        cheap_run(folder)
    (folder / "checkpoint-4").rename(tmp_path / "away")
    assert (tmp_path / "away").is_file() or (tmp_path / "away/model.safetensors/theirs").is_file()
    assert_same_end(cheap_run(folder), whole)
