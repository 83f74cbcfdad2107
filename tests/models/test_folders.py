"""Every way to name a model: short names, folders, caches in every layout, the hub. No test uses the network."""

from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

from grpo_lab.models import folders, load_policy, loading
from tests.support.resuming import copy_folder
from tests.support.small_policy import make_policy

pytestmark = pytest.mark.usefixtures("bare_machine")


def put_in_huggingface_cache(
    checkpoint, root: Path, hub_id: str = folders.QWEN2, without: tuple[str, ...] = ()
) -> Path:
    repo = root / "hub" / ("models--" + hub_id.replace("/", "--"))
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee", encoding="utf-8")
    return copy_folder(checkpoint, repo / "snapshots" / "c0ffee", without)


def test_auto_on_a_bare_machine_takes_tiny_and_says_why(monkeypatch, checkpoint, capsys):
    monkeypatch.setattr(folders, "TINY", checkpoint)
    load_policy("auto")
    output = capsys.readouterr().out
    assert "tiny model" in output and "Qwen/Qwen2-0.5B-Instruct is not in" in output and "ModelScope" in output


def test_auto_on_a_gpu_without_the_model_stops_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(loading, "pick_device", lambda device: torch.device("cuda"))
    with pytest.raises(FileNotFoundError) as stopped:
        load_policy("auto")
    message = str(stopped.value)
    assert message.startswith("name is 'auto', which on a GPU is Qwen/Qwen2-0.5B-Instruct, and that is not in ")
    assert (
        "`hf download Qwen/Qwen2-0.5B-Instruct`" in message
        and "--model tiny" in message
        and "load_policy('tiny')" in message
    )
    assert "`modelscope download --model Qwen/Qwen2-0.5B-Instruct`" in message


def test_the_parameters_of_a_checkpoint_are_counted_in_all_its_files(tmp_path):
    model, tokenizer = make_policy()
    for name, size in (("whole", "5GB"), ("parts", "5KB")):
        model.save_pretrained(tmp_path / name, max_shard_size=size)
        tokenizer.save_pretrained(tmp_path / name)
        assert folders.count_parameters(tmp_path / name) == sum(p.numel() for p in model.parameters())
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1


def test_a_file_that_is_no_safetensors_file_is_named(checkpoint, tmp_path):
    folder = copy_folder(checkpoint, tmp_path / "model")
    for content in (b"", b"12345678", b"\x05" + 7 * b"\0" + b"[1,2]", b"\xff" * 40):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"model, whose model.safetensors is not a safetensors file, or is damaged"
        ):
            folders.count_parameters(folder)


def test_the_files_of_a_model_can_be_given_in_place_of_its_name_and_are_not_looked_for_again(checkpoint, monkeypatch):
    files = folders.find_model(checkpoint)
    assert (files.folder, files.adapter, files.name) == (checkpoint, None, str(checkpoint))
    assert files.weight_files == (checkpoint / "model.safetensors",)
    for reader in ("find_folder", "missing_or_damaged", "_tensors_in"):
        monkeypatch.setattr(folders, reader, None)
    assert folders.count_parameters(files) == files.num_parameters
    assert not folders.is_bundled_model(files)
    model, tokenizer = load_policy(files)
    assert model.num_parameters() == files.num_parameters
    config, loaded_tokenizer = loading.load_config_and_tokenizer(files)
    assert config.hidden_size == model.config.hidden_size and len(loaded_tokenizer) == len(tokenizer)


LAYOUTS = [
    "models/qwen/Qwen2-0___5B-Instruct",
    "models/Qwen/Qwen2-0___5B-Instruct",
    "hub/models/Qwen/Qwen2-0___5B-Instruct",
    "hub/qwen/Qwen2-0___5B-Instruct",
    "qwen/Qwen2-0___5B-Instruct",
    "models/Qwen/Qwen2-0.5B-Instruct",
    "models/Qwen--Qwen2-0.5B-Instruct/snapshots/master",
    "models/Qwen--Qwen2-0.5B-Instruct/snapshots/v1.0",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_searches_every_layout_of_modelscope_before_the_other_caches(bare_machine, checkpoint, layout: str):
    copy = copy_folder(checkpoint, bare_machine / "modelscope" / layout)
    put_in_huggingface_cache(checkpoint, bare_machine)
    if layout.endswith("master"):
        copy_folder(checkpoint, copy.with_name("a-branch"))
    for device in ("cpu", "cuda"):
        folder = folders.find_folder("auto", device)
        assert folder.path == copy and "ModelScope" in folder.reason


def test_auto_passes_over_a_broken_copy_and_prints_so(bare_machine, checkpoint, capsys):
    copy_folder(checkpoint, bare_machine / "modelscope" / LAYOUTS[0], without=("*.safetensors",))
    put_in_huggingface_cache(checkpoint, bare_machine)
    assert "Hugging Face" in folders.find_folder("auto").reason
    output = capsys.readouterr().out
    assert "passing over" in output and "has no model.safetensors" in output


def test_a_hub_id_comes_from_the_caches_first(bare_machine, checkpoint):
    put_in_huggingface_cache(checkpoint, bare_machine, "someone/some-model")
    assert "someone/some-model, found in the Hugging Face cache" in folders.find_folder("someone/some-model").reason


def downloads(monkeypatch, outcome: Path | Exception) -> list[dict]:
    calls = []

    def snapshot_download(*args, local_files_only: bool = False, **kwargs):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        calls.append(kwargs)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_hub_id_is_downloaded_when_no_cache_has_it_without_pickles(monkeypatch, checkpoint, capsys):
    calls = downloads(monkeypatch, checkpoint)
    load_policy("someone/some-model")
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in calls[0]["allow_patterns"])
    assert "downloaded from the Hugging Face hub" in capsys.readouterr().out


def test_a_download_without_network_is_an_error_with_remedies(monkeypatch):
    downloads(monkeypatch, OfflineModeIsEnabled("offline"))
    with pytest.raises(ConnectionError, match=r"is 'someone/some-model'.*HF_ENDPOINT.*modelscope download.*tiny"):
        load_policy("someone/some-model")


def test_a_model_that_the_hub_lacks_is_named(monkeypatch):
    response = type("Response", (), {"status_code": 404, "headers": {}, "request": None})()
    downloads(monkeypatch, RepositoryNotFoundError("404", response=response))
    with pytest.raises(ValueError, match=r"name is 'someone/run1'; neither a folder in .* nor a model on the hub"):
        load_policy("someone/run1")


@pytest.mark.parametrize("other_files", [(), ("config.json",), ("config.json", "model.safetensors")])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '{"peft_type": "LORA", "base_model_name_or_path": "some/model"}',
            "a LoRA adapter for 'some/model', which is not a whole model on this machine; `hf download some/model`",
        ),
        ('{"peft_type": "LORA", "base_model_name_or_path": ""}', "a LORA adapter for '' and not a whole model"),
        ('{"peft_type": "IA3", "base_model_name_or_path": "a/b"}', "a IA3 adapter for 'a/b' and not a whole model"),
        (
            '{"peft_type": "LORA", "base_model_name_or_path": "some/model", "modules_to_save": ["score"]}',
            "which holds \\['score'\\] as well; merge it with peft",
        ),
        ("{", "adapter_config.json is damaged"),
    ],
)
def test_a_folder_with_only_an_adapter_is_refused_in_one_sentence(checkpoint, tmp_path, other_files, content, words):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(content, encoding="utf-8")
    (folder / "adapter_model.safetensors").touch()
    for name in other_files:
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    for use in (load_policy, folders.count_parameters):
        with pytest.raises(ValueError, match=rf"^name is .*adapter, .*{words}"):
            use(folder)


def test_a_cut_index_in_a_cache_is_passed_over(bare_machine, checkpoint, capsys):
    cut = copy_folder(checkpoint, bare_machine / "modelscope" / LAYOUTS[0])
    (cut / "model.safetensors.index.json").write_text('{"weight_map": {"a": "mo', encoding="utf-8")
    put_in_huggingface_cache(checkpoint, bare_machine)
    assert "Hugging Face" in folders.find_folder("auto").reason
    assert "has a damaged model.safetensors.index.json" in capsys.readouterr().out


def test_a_wrong_name_lists_what_is_allowed(checkpoint):
    for name in ("tinny", checkpoint / "config.json", "./outputs/none", "C:\\models", "", "a/b/c", Path("org/model")):
        with pytest.raises(ValueError, match=r'name is .*no such folder; expected "auto", "tiny", "smollm2", "qwen"'):
            load_policy(name)
    for name in ("outputs/none", "tests/none"):
        with pytest.raises(ValueError, match=f"^name is '{name}', and there is no such folder in .*hf download"):
            load_policy(name)
    with pytest.raises(TypeError):
        load_policy(42)


@pytest.mark.parametrize(("device", "name"), [("cpu", "tiny"), ("cuda", None)])
def test_without_a_device_type_the_name_auto_stands_for_what_load_policy_takes(monkeypatch, device, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    if name is None:
        with pytest.raises(FileNotFoundError, match="name is 'auto', which on a GPU is Qwen/Qwen2-0.5B-Instruct"):
            folders.find_model("auto")
    else:
        assert folders.find_model("auto").folder == folders.TINY


def test_the_bundled_model_is_known_by_its_shape_and_vocabulary_and_not_by_its_size(tiny, checkpoint, tmp_path):
    model, tokenizer = tiny
    model.get_input_embeddings().weight.data.mul_(1.5)  # a trained model has other weights
    model.save_pretrained(tmp_path / "trained")
    tokenizer.save_pretrained(tmp_path / "trained")
    assert folders.is_bundled_model("tiny") and folders.is_bundled_model(tmp_path / "trained")
    assert folders.count_parameters(checkpoint) < folders.count_parameters("tiny")
    assert not folders.is_bundled_model(checkpoint)
    for file in ("config.json", "tokenizer.json"):
        other = copy_folder(tmp_path / "trained", tmp_path / f"other {file}")
        text = (other / file).read_text(encoding="utf-8")
        text = text.replace('"hidden_size": 128', '"hidden_size": 64').replace('"!"', '"another"')
        (other / file).write_text(text, encoding="utf-8")
        assert not folders.is_bundled_model(other)
    (tmp_path / "trained" / "tokenizer.json").unlink()
    (tmp_path / "trained" / "vocab.json").write_text("{}", encoding="utf-8")
    assert not folders.is_bundled_model(tmp_path / "trained")
