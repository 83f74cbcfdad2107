"""Loading: every way to name a model, every device and precision, every fault with its remedy; all offline."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo_lab import _model_folders as folders
from grpo_lab import models
from grpo_lab.models import load_policy

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(
    pad_token: str | None = "<|endoftext|>", eos_token: str | None = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, pad_token=pad_token, eos_token=eos_token)


def make_model(vocab_size: int = 259) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete random Qwen2, with sampling settings of its own as the real one has them."""
    folder = tmp_path_factory.mktemp("models") / "random-qwen2"
    model = make_model()
    model.generation_config.update(do_sample=True, top_k=20, top_p=0.8, repetition_penalty=1.1)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty caches, no card, and an error for whoever tries to download."""
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    real = huggingface_hub.snapshot_download

    def local_only(*args, local_files_only: bool = False, **kwargs):
        assert local_files_only, "a test tried to download"
        return real(*args, local_files_only=True, **kwargs)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", local_only)
    return tmp_path


def copy(checkpoint: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns(*without))
    return target


def put_in_huggingface_cache(
    checkpoint: Path, root: Path, hub_id: str = folders.QWEN2, without: tuple[str, ...] = ()
) -> Path:
    repo = root / "hub" / ("models--" + hub_id.replace("/", "--"))
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee", encoding="utf-8")
    return copy(checkpoint, repo / "snapshots" / "c0ffee", without)


# ---- what comes back


def test_a_folder_gives_model_and_tokenizer_and_says_so(checkpoint: Path, capsys: pytest.CaptureFixture) -> None:
    model, tokenizer = load_policy(checkpoint)
    assert not model.training and all(p.requires_grad for p in model.parameters())
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    assert tokenizer.padding_side == "left"
    assert tokenizer.decode(tokenizer("2 + 2 = 四\n")["input_ids"]) == "2 + 2 = 四\n"
    said, noise = capsys.readouterr()
    assert not noise
    count = sum(p.numel() for p in model.parameters())
    for word in ("random-qwen2", "the folder you named", f"{count:,} parameters", "fp32", "CPU"):
        assert word in said


def test_a_string_names_a_folder_as_well_as_a_path_does(checkpoint: Path) -> None:
    assert load_policy(str(checkpoint))[0].config.hidden_size == 16


def test_the_checkpoint_keeps_its_sampling_settings(checkpoint: Path, tmp_path: Path) -> None:
    model, _ = load_policy(checkpoint)
    model.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "generation_config.json").read_text(encoding="utf-8"))
    assert saved["top_k"] == 20 and saved["repetition_penalty"] == 1.1


def test_without_padding_token_the_end_token_pads_and_it_is_said(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = copy(checkpoint, tmp_path / "no-pad", without=("tokenizer*", "special_tokens*"))
    make_tokenizer(pad_token=None).save_pretrained(folder)
    _, tokenizer = load_policy(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "no padding token" in capsys.readouterr().out


# ---- the names


def test_tiny_is_the_shipped_model(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(folders, "TINY", checkpoint)
    load_policy("tiny")
    assert "the tiny model that ships with grpo_lab" in capsys.readouterr().out


def test_tiny_missing_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folders, "TINY", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="make_tiny_qwen2"):
        load_policy("tiny")


def test_auto_on_a_bare_machine_takes_tiny_and_says_why(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(folders, "TINY", checkpoint)
    load_policy("auto")
    said = capsys.readouterr().out
    assert "tiny model" in said and "Qwen/Qwen2-0.5B-Instruct is not in" in said and "ModelScope" in said


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
def test_auto_finds_every_layout_of_modelscope(bare_machine: Path, checkpoint: Path, layout: str) -> None:
    where = copy(checkpoint, bare_machine / "modelscope" / layout)
    folder, why = folders.find_folder("auto")
    assert folder == where and "ModelScope" in why


def test_modelscope_snapshot_master_comes_before_others(bare_machine: Path, checkpoint: Path) -> None:
    snapshots = bare_machine / "modelscope" / "models" / "Qwen--Qwen2-0.5B-Instruct" / "snapshots"
    copy(checkpoint, snapshots / "a-branch")
    master = copy(checkpoint, snapshots / "master")
    assert folders.find_folder("auto")[0] == master


def test_modelscope_default_place_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MODELSCOPE_CACHE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert folders.modelscope_cache() == tmp_path / ".cache" / "modelscope"


def test_auto_finds_the_huggingface_cache(bare_machine: Path, checkpoint: Path) -> None:
    where = put_in_huggingface_cache(checkpoint, bare_machine)
    folder, why = folders.find_folder("auto")
    assert folder == where and "Hugging Face" in why


def test_auto_prefers_modelscope(bare_machine: Path, checkpoint: Path) -> None:
    put_in_huggingface_cache(checkpoint, bare_machine)
    copy(checkpoint, bare_machine / "modelscope" / LAYOUTS[0])
    assert "ModelScope" in folders.find_folder("auto")[1]


def test_auto_passes_over_a_broken_copy_aloud(
    bare_machine: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    copy(checkpoint, bare_machine / "modelscope" / LAYOUTS[0], without=("*.safetensors",))
    put_in_huggingface_cache(checkpoint, bare_machine)
    assert "Hugging Face" in folders.find_folder("auto")[1]
    said = capsys.readouterr().out
    assert "passing over" in said and "lacks model.safetensors" in said


def test_a_hub_id_comes_from_the_caches_first(bare_machine: Path, checkpoint: Path) -> None:
    put_in_huggingface_cache(checkpoint, bare_machine, "someone/some-model")
    assert "someone/some-model, found in the Hugging Face cache" in folders.find_folder("someone/some-model")[1]


def downloads(monkeypatch: pytest.MonkeyPatch, outcome: Path | Exception) -> list[dict]:
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


def test_a_hub_id_is_downloaded_when_no_cache_has_it_without_pickles(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    calls = downloads(monkeypatch, checkpoint)
    load_policy("someone/some-model")
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in calls[0]["allow_patterns"])
    assert "downloaded from the Hugging Face hub" in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError("no route"), OfflineModeIsEnabled("offline"), TimeoutError()])
def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    downloads(monkeypatch, error)
    with pytest.raises(ConnectionError, match=r"name is 'someone/some-model'.*HF_ENDPOINT.*modelscope download.*tiny"):
        load_policy("someone/some-model")


def test_a_hub_without_that_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    response = type("Response", (), {"status_code": 404, "headers": {}, "request": None})()
    downloads(monkeypatch, RepositoryNotFoundError("404", response=response))
    with pytest.raises(ValueError, match=r"name is 'outputs/run1'; neither a folder in .* nor a model on the hub"):
        load_policy("outputs/run1")


@pytest.mark.parametrize("name", ["tinny", "./outputs/none", "C:\\models\\qwen", "", "a/b/c", Path("org/model")])
def test_a_wrong_name_lists_what_is_allowed(name: str | Path) -> None:
    with pytest.raises(ValueError, match=r'name is .*no such folder; allowed are "auto", "tiny", a folder'):
        load_policy(name)


def test_a_name_of_the_wrong_type(checkpoint: Path) -> None:
    with pytest.raises(TypeError):
        load_policy(42)


def test_a_file_is_not_a_folder(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="which is a file"):
        load_policy(checkpoint / "config.json")


# ---- what may be wrong with a folder


@pytest.mark.parametrize(
    ("without", "remedy"),
    [
        (("config.json",), "has no config.json"),
        (("tokenizer*",), r"has no tokenizer \(no tokenizer.json\): copy the tokenizer files"),
        (("*.safetensors",), "lacks model.safetensors: the download was cut short"),
    ],
)
def test_an_incomplete_folder_names_what_is_missing(
    checkpoint: Path, tmp_path: Path, without: tuple[str, ...], remedy: str
) -> None:
    folder = copy(checkpoint, tmp_path / "part", without)
    with pytest.raises(FileNotFoundError, match=f"name: .*{remedy}"):
        load_policy(folder)


def test_a_missing_shard_is_named(checkpoint: Path, tmp_path: Path) -> None:
    folder = copy(checkpoint, tmp_path / "shards", without=("*.safetensors",))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="lacks model-00002-of-00002.safetensors"):
        load_policy(folder)


def test_pickled_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = copy(checkpoint, tmp_path / "pickled", without=("*.safetensors",))
    (folder / "pytorch_model.bin").write_bytes(b"would run code")
    with pytest.raises(FileNotFoundError, match="only as pickled files"):
        load_policy(folder)


def test_code_in_a_checkpoint_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    folder = copy(checkpoint, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')", encoding="utf-8")
    with pytest.raises(ValueError, match="never run"):
        load_policy(folder)


def test_a_tokenizer_of_another_model_is_noticed(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    make_model(vocab_size=100).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    with pytest.raises(ValueError, match="the tokenizer knows 259 tokens and the model 100"):
        load_policy(folder)


def test_a_tokenizer_without_end_token_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = copy(checkpoint, tmp_path / "endless", without=("tokenizer*", "special_tokens*"))
    make_tokenizer(eos_token=None).save_pretrained(folder)
    with pytest.raises(ValueError, match="no end token"):
        load_policy(folder)


# ---- devices and precisions


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch):
    """Pretend that there is one card, with or without bf16 of its own."""

    class Nowhere:
        def __init__(self, device: torch.device) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *args) -> None: ...

    def pretend(bf16: bool) -> torch.device:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device", Nowhere)
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation
        )
        return torch.device("cuda")

    return pretend


@pytest.mark.parametrize("bf16", [True, False])
def test_precision_follows_the_card(card, bf16: bool) -> None:
    device = card(bf16)
    assert models.pick_device() == device
    assert models.pick_dtype(device) == (torch.bfloat16 if bf16 else torch.float16)
    assert models.pick_dtype(device, small=True) == torch.float32
    assert models.pick_dtype(device, "bf16") == torch.bfloat16
    assert models.pick_dtype(torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_precision_asked_for_is_what_you_get(checkpoint: Path, precision: str) -> None:
    assert load_policy(checkpoint, precision=precision)[0].dtype == models.PRECISIONS[precision]


@pytest.mark.parametrize("precision", ["float32", "int8", ""])
def test_a_wrong_precision_lists_what_is_allowed(checkpoint: Path, precision: str) -> None:
    with pytest.raises(ValueError, match="precision is .*allowed are 'bf16', 'fp16', 'fp32' and None"):
        load_policy(checkpoint, precision=precision)


def test_mps_is_taken_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert models.pick_device() == torch.device("cpu")
    assert models.pick_device("mps") == torch.device("mps")
    assert models.pick_dtype(torch.device("mps")) == torch.float32


def test_a_wrong_device_lists_what_is_allowed(card) -> None:
    for device in ("gpu", "tpu:0", "meta"):
        with pytest.raises(ValueError, match="device is .*allowed are 'cpu', 'cuda'"):
            models.pick_device(device)
    with pytest.raises(ValueError, match="sees no NVIDIA card; `python -m grpo_lab.doctor`"):
        models.pick_device("cuda")
    card(bf16=True)
    with pytest.raises(ValueError, match="'cuda:3', but there"):
        models.pick_device("cuda:3")


def test_describe_device_names_the_card(card, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.describe_device().startswith("CPU (")
    card(bf16=True)
    h200 = type("Properties", (), {"name": "NVIDIA H200", "total_memory": 150 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h200)
    assert models.describe_device("cuda:0") == "NVIDIA H200 (cuda:0), 150.0 GiB"


@pytest.mark.gpu
def test_on_a_real_card(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, _ = load_policy(checkpoint, device="cuda", precision="bf16")
    assert model.device.type == "cuda" and model.dtype == torch.bfloat16
