"""Loading a policy: results and printed lines, its device and precision, and each fault of a folder with its remedy."""

import json
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config import precision as precision_module
from grpo_lab.config.precision import PRECISIONS, possible_precisions, precision_of
from grpo_lab.models import load_policy, loading
from grpo_lab.models.folders import count_parameters
from grpo_lab.models.loading import (
    ModelWithoutWeights,
    describe_device,
    keep_freed_memory_unless_tiny,
    load_config_and_tokenizer,
    one_thread_if_tiny,
    pick_device,
)
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompts import end_token_ids
from grpo_lab.train import RunOptions
from grpo_lab.train.checks import dry_run_lines
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.plan import make_plan
from grpo_lab.train.trl.engine import TrlEngine
from grpo_lab.trainer.run.checkpoint import check_savable
from tests.support.resuming import copy_folder
from tests.support.small_policy import make_policy, make_tokenizer
from tests.support.tool_policy import ROWS, add, make_tool_policy

TINY, LARGE = 100_000, 100_000_000  # numbers of parameters of a model that counts as tiny, and of one that does not

pytestmark = pytest.mark.usefixtures("bare_machine")


def test_load_policy_of_a_folder_returns_model_and_tokenizer_and_names_the_folder(checkpoint, capsys):
    model, tokenizer = load_policy(checkpoint)
    assert not model.training and all(p.requires_grad for p in model.parameters())
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    assert tokenizer.padding_side == "left"
    assert tokenizer.decode(tokenizer("ab+20=?")["input_ids"]) == "ab+20=?"
    output, noise = capsys.readouterr()
    assert not noise
    count = sum(p.numel() for p in model.parameters())
    for word in ("random-qwen2", "the folder you named", f"{count:,} parameters", "fp32", "CPU"):
        assert word in output


def test_without_padding_token_the_end_token_pads_and_it_is_said(checkpoint, tmp_path, capsys):
    folder = copy_folder(checkpoint, tmp_path / "no-pad", without=("tokenizer*", "special_tokens*"))
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    _, tokenizer = load_policy(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "no padding token" in capsys.readouterr().out


INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
SHARDS = {"model.safetensors.index.json": json.dumps(INDEX), "model-00001-of-00002.safetensors": ""}


@pytest.mark.parametrize(
    ("without", "added", "remedy"),
    [
        ("config.json", {}, "has no config.json"),
        ("tokenizer*", {}, "has no tokenizer.json; download it again"),
        ("*.safetensors", SHARDS, "has no model-00002-of-00002.safetensors"),
        ("*.safetensors", {"pytorch_model.bin": "would run code"}, "has no model.safetensors; .*pickled files can run"),
    ],
)
def test_an_incomplete_folder_names_what_is_missing(checkpoint, tmp_path, without, added, remedy):
    folder = copy_folder(checkpoint, tmp_path / "part", (without,))
    for name, text in added.items():
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=f"name is .*{remedy}"):
        load_policy(folder)


def test_code_in_a_checkpoint_is_not_run(checkpoint, tmp_path):
    folder = copy_folder(checkpoint, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')", encoding="utf-8")
    with pytest.raises(ValueError, match="never run"):
        load_policy(folder)


def test_a_model_that_continues_no_text_is_refused_in_a_few_words(checkpoint, tmp_path):
    folder = copy_folder(checkpoint, tmp_path / "t5")
    T5Config(vocab_size=259, d_model=16, d_ff=16, num_layers=1, num_heads=2).save_pretrained(folder)
    with pytest.raises(ValueError, match="holds no model that transformers can load by itself.*T5Config") as refusal:
        load_policy(folder)
    assert len(str(refusal.value)) < 500, "without the names of all models that do"


def with_weights(checkpoint, folder, change):
    """Return a copy of the checkpoint with tensors changed by the function `change`."""
    folder = copy_folder(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "lack model.norm.weight, which would begin at random"),
        (lambda tensors: tensors.clear(), "lack lm_head.weight and 26 more, which would begin at random"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), "can load.*ignore_mismatched_sizes"),
        (lambda tensors: tensors["model.norm.weight"].fill_(float("nan")), "not finite, first in model.norm.weight"),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_refused(checkpoint, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_policy(with_weights(checkpoint, tmp_path / "other", change))
    load_policy(checkpoint)  # a sound model of the same architecture is loaded, although a damaged one was refused


def with_settings(folder, name, **settings):
    changed = json.loads((folder / name).read_text(encoding="utf-8")) | settings
    (folder / name).write_text(json.dumps(changed), encoding="utf-8")
    return folder


UNSAVABLE = {
    "do_sample is now true": {"temperature": 0.9, "top_p": 0.6},  # Llama 2 chat
    "do_sample is now true ": {"top_k": 20, "min_p": 0.1},
    "temperature, top_p left out": {"do_sample": False, "temperature": 0.9, "top_p": 0.6},
    "typical_p left out": {"do_sample": False, "typical_p": 0.5, "repetition_penalty": 1.1},
    "early_stopping, length_penalty left out": {"early_stopping": True, "length_penalty": 0.7},
    "output_scores left out": {"output_scores": True},
    "pad_token_id left out": {"pad_token_id": -1},
    "length_penalty left out": {"do_sample": True, "temperature": 0.9, "length_penalty": 2.0},
}


@pytest.mark.parametrize("change", UNSAVABLE)
def test_an_unsavable_generation_config_is_mended_with_a_message(checkpoint, tmp_path, change, capsys):
    settings = UNSAVABLE[change]
    folder = with_settings(copy_folder(checkpoint, tmp_path / "chat"), "generation_config.json", **settings)
    model, tokenizer = load_policy(folder)
    assert f"policy: {change.strip()} in the generation_config" in capsys.readouterr().out
    check_savable(model, tokenizer)
    left_out = change.removesuffix(" left out").split(", ") if "left out" in change else []
    now = model.generation_config.to_diff_dict()
    assert {name: now.get(name) for name in settings if name not in left_out} == {
        name: value for name, value in settings.items() if name not in left_out
    }
    assert end_token_ids(model, tokenizer) == end_token_ids(*load_policy(checkpoint))


@pytest.mark.parametrize(
    ("file", "entry", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ("config.json", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ("config.json", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandb"),
        ("config.json", {"quantization_config": {"load_in_8bit": True}}, "bitsandbytes"),
        ("config.json", {"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ("config.json", {"quantization_config": {"quant_method": "torchao", "quant_type": "int4"}}, "torchao"),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("config.json", {"quantization_config": {"quant_method": "nobody's"}}, "nobody's"),
        ("config.json", {"quantization_config": "all of it"}, "some method"),
        ("config.json", {"compression_config": {"quant_method": "sparse"}}, "sparse"),
        ("config.json", {"quantization": {"group_size": 64, "bits": 4}}, "some method"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "mxfp4"),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "some method"),
    ],
)
def test_quantised_weights_are_refused_in_one_sentence_whatever_the_method(checkpoint, tmp_path, file, entry, method):
    folder = copy_folder(checkpoint, tmp_path / "small")
    (folder / file).touch()
    (folder / file).write_text("{}", encoding="utf-8") if file != "config.json" else None
    with_settings(folder, file, **entry)
    for load in (load_policy, load_config_and_tokenizer):
        with pytest.raises(InputError, match=rf"^name is .*, whose weights are quantised \({method}.*; take the model"):
            load(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_one_byte_weights_count_as_quantised(checkpoint, tmp_path, dtype):
    def store(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(dtype)
        tensors["a.mask"] = torch.ones(2, dtype=torch.uint8)

    with pytest.raises(InputError, match=r"whose weights are quantised \(stored as [FIU]8.*\); take the model"):
        load_policy(with_weights(checkpoint, tmp_path / "bytes", store))


def test_a_quantisation_config_of_none_means_no_quantisation(checkpoint, tmp_path):
    load_policy(with_settings(copy_folder(checkpoint, tmp_path / "whole"), "config.json", quantization_config=None))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
DAMAGED = [
    ("config.json", '{"model_type": "qwen2", "hidden', "whose config.json is damaged; download it again"),
    ("config.json", "", "whose config.json is damaged"),
    ("config.json", "[]", "whose config.json is damaged"),
    ("generation_config.json", '{"eos_token_id": [1', "whose generation_config.json is damaged"),
    ("special_tokens_map.json", '{"eos', "whose special_tokens_map.json is damaged"),
    ("config.json", '{"model_type": "qwen2", "hidden_size": "many"}', "can load"),
    ("config.json", '{"model_type": "qwen2", "num_attention_heads": 0}', "can load"),
    ("tokenizer.json", '{"version": "1.0", "trunc', "whose tokenizer cannot be loaded"),
    ("tokenizer.json", "{}", "whose tokenizer cannot be loaded"),
    ("tokenizer_config.json", "{", "whose tokenizer_config.json is damaged"),
    ("model.safetensors", "", "whose model.safetensors is not a safetensors file, or is damaged; download it again"),
    ("model.safetensors", POINTER, "model.safetensors is a pointer of Git LFS; `git lfs pull`"),
    ("tokenizer.json", POINTER, "tokenizer.json is a pointer of Git LFS"),
    ("model.safetensors.index.json", '{"metadata": {"total_size": 1', "has a damaged model.safetensors.index.json"),
    ("model.safetensors.index.json", "{}", "has a damaged model.safetensors.index.json"),
    ("model.safetensors.index.json", "[1]", "has a damaged model.safetensors.index.json"),
    ("model.safetensors.index.json", '{"weight_map": {}}', "has a damaged model.safetensors.index.json"),
    ("model.safetensors.index.json", '{"weight_map": {"a": 7}}', "has a damaged model.safetensors.index.json"),
    ("model.safetensors.index.json", '{"weight_map": ["a"]}', "has a damaged model.safetensors.index.json"),
]


@pytest.mark.parametrize(("file", "content", "message"), DAMAGED)
def test_a_damaged_file_of_a_model_is_refused_in_one_sentence_about_the_folder(
    checkpoint, tmp_path, file, content, message
):
    folder = copy_folder(checkpoint, tmp_path / "cut")
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=f"^name is .*cut.*{message}") as refusal:
        load_policy(folder)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 700


def test_out_of_memory_is_not_reported_as_a_fault_of_the_folder(checkpoint, monkeypatch):
    for error in (MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")):
        monkeypatch.setattr(
            loading.AutoModelForCausalLM, "from_pretrained", lambda *_, error=error, **__: raises(error)
        )
        with pytest.raises(type(error)) as shown:
            load_policy(checkpoint)
        assert shown.value is error


def raises(error):
    raise error


def test_a_tokenizer_of_another_model_is_noticed(checkpoint, tmp_path):
    model, tokenizer = make_policy()
    tokenizer.add_tokens(["x", "y"])
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "mixed")
    with pytest.raises(ValueError, match="the tokenizer knows 20 tokens and the model 18"):
        load_policy(tmp_path / "mixed")


def test_a_tokenizer_without_end_token_is_refused(checkpoint, tmp_path):
    folder = copy_folder(checkpoint, tmp_path / "endless", without=("tokenizer*", "special_tokens*"))
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="no end token"):
        load_policy(folder)


@pytest.mark.parametrize("precision", [None, *PRECISIONS])
def test_a_model_trains_in_the_mode_it_was_loaded_for(checkpoint, precision: str | None, capsys):
    """A copy, such as the reference, has the same precision; converting the weights to another type changes it."""
    model, _ = load_policy(checkpoint, precision=precision)
    mode = PRECISIONS[precision or "fp32"]
    assert model.dtype == mode.weights and f", {mode}, on CPU" in capsys.readouterr().out
    assert precision_of(deepcopy(model), GRPOConfig()).name == (precision or "fp32")
    model.to(torch.float32 if model.dtype == torch.bfloat16 else torch.bfloat16)
    assert precision_of(model, GRPOConfig()).name == ("fp32" if model.dtype == torch.float32 else "bf16")


def test_a_wrong_precision_lists_what_is_allowed(checkpoint):
    with pytest.raises(ValueError, match="precision is 'int8'; expected one of 'fp32', 'fp32-master', 'bf16'"):
        load_policy(checkpoint, precision="int8")


def test_configuration_and_tokenizer_are_enough_to_check_an_environment(tmp_path):
    model, tokenizer = make_tool_policy()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config, opened_tokenizer = load_config_and_tokenizer(str(tmp_path), "cpu")
    assert config.hidden_size == model.config.hidden_size and config.vocab_size == len(tokenizer)
    assert opened_tokenizer.chat_template == tokenizer.chat_template and opened_tokenizer.padding_side == "left"
    environment, stand_in = ToolEnvironment([add]), ModelWithoutWeights(config)
    environment.check(stand_in, opened_tokenizer, ROWS, 60)
    with pytest.raises(InputError, match="dataset row 0: prompt has "):
        environment.check(stand_in, opened_tokenizer, ROWS, config.max_position_embeddings)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path):
    model, tokenizer = make_tool_policy()
    tokenizer.eos_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="whose tokenizer has no end token"):
        load_config_and_tokenizer(str(tmp_path), "cpu")


@pytest.fixture
def fake_gpu(monkeypatch):
    """Pretend that there is one GPU, which supports bf16 or does not."""

    def pretend(bf16: bool) -> torch.device:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation
        )
        return torch.device("cuda")

    return pretend


@pytest.mark.parametrize("bf16", [True, False])
def test_precision_follows_the_gpu(fake_gpu, bf16: bool):
    device = fake_gpu(bf16)
    assert pick_device() == device
    assert possible_precisions(device, 10_000_000)[-1] == ("bf16" if bf16 else "fp16")
    assert possible_precisions(device, 9_999_999)[-1] == "fp32"
    assert possible_precisions(device, 9_999_999, "bf16-naive")[-1] == "bf16-naive"
    assert possible_precisions(torch.device("cpu"), 10_000_000)[-1] == "fp32"


def test_without_a_gpu_the_device_is_the_cpu_in_fp32():
    assert pick_device() == torch.device("cpu")
    assert possible_precisions(pick_device(), LARGE)[-1] == "fp32"


def test_a_device_is_described_in_one_line(fake_gpu, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for threads, words in ((1, "1 torch thread"), (2, "2 torch threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert describe_device("cpu") == f"CPU (x86_64), {words}"
    fake_gpu(bf16=True)
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=int(139.75 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for device in (None, "cuda", "cuda:0"):
        assert describe_device(device) == "NVIDIA H200 (cuda:0), 139.8 GiB"


@pytest.mark.parametrize("bf16", [True, False])
def test_every_choice_of_a_precision_is_one_of_the_possible_ones(fake_gpu, bf16: bool):
    """One list gives the default of `load_policy`, the first choice of TRL and adapters, and a requested precision."""
    device, cpu = fake_gpu(bf16), torch.device("cpu")
    modes = ("fp32-master", "bf16") if bf16 else ("fp16",)
    assert possible_precisions(device, LARGE) == modes
    assert possible_precisions(None, LARGE) == ("fp32-master", "bf16")
    for engine in (TrlEngine(), OurEngine(lora={})):
        assert (engine.loading_precision(GRPOConfig(), device, LARGE) or modes[-1]) == modes[0]
        assert engine.loading_precision(GRPOConfig(), device, TINY) is None
    for other_device, parameters in ((device, TINY), (cpu, LARGE), (cpu, TINY), (None, TINY)):
        assert possible_precisions(other_device, parameters) == ("fp32",)
    for requested in PRECISIONS:
        assert possible_precisions(device, LARGE, requested) == (requested,)
        assert possible_precisions(None, TINY, requested) == (requested,)


@pytest.mark.parametrize("stored_as", [torch.float32, torch.bfloat16])
def test_load_policy_chooses_the_precision_by_parameters_and_not_by_bytes(stored_as, tmp_path, monkeypatch):
    """The same number of parameters has one precision, in whichever type it is stored: that of the commands."""
    policy, tokenizer = make_policy()
    policy.to(stored_as).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    count, loaded = count_parameters(tmp_path), []
    # A GPU that is only asked for: the model stays on the CPU.
    monkeypatch.setattr(precision_module, "has_native_bf16", lambda device: True)
    monkeypatch.setattr(loading, "pick_device", lambda device=None: torch.device("cuda"))
    monkeypatch.setattr(loading, "_load_model", lambda files, dtype, device: loaded.append(dtype) or policy)
    monkeypatch.setattr(loading, "ensure_checked", lambda model: None)
    monkeypatch.setattr(loading, "describe_device", lambda device: "a GPU")
    for tiny_below, dtype in ((count, torch.bfloat16), (count + 1, torch.float32)):
        monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", tiny_below)
        load_policy(tmp_path)
        engine_choice = OurEngine(lora={}).loading_precision(GRPOConfig(), torch.device("cuda"), count)
        assert loaded[-1] == dtype and engine_choice == ("fp32-master" if dtype == torch.bfloat16 else None)


def test_a_wrong_device_lists_what_is_allowed(fake_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("gpu", "tpu:0", "meta", "cuda"):
        with pytest.raises(ValueError, match=f"device is '{device}'; expected None or one of cpu"):
            pick_device(device)
    fake_gpu(bf16=True)
    with pytest.raises(ValueError, match="device is 'cuda:3'; expected None or one of cpu, cuda:0: the devices"):
        pick_device("cuda:3")


def test_small_models_get_one_thread_unless_the_user_chose(tiny, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    one_thread_if_tiny(tiny[0])
    assert chosen == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    one_thread_if_tiny(tiny[0])
    assert chosen == [1]


@pytest.mark.parametrize(("tiny_below", "calls"), [(1, 1), (10**9, 0)])
def test_a_real_model_on_a_cpu_lets_the_process_keep_freed_memory(tiny_below, calls, checkpoint, monkeypatch):
    counted = []
    monkeypatch.setattr(loading, "keep_freed_memory", lambda: counted.append(1))
    monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", tiny_below)
    keep_freed_memory_unless_tiny(load_policy(checkpoint, device="cpu")[0])
    assert len(counted) == calls


def test_a_dry_run_of_a_tiny_model_on_a_gpu_plans_its_memory_in_the_precision_that_it_is_loaded_in(fake_gpu):
    plan = make_plan(RunOptions({"model": "tiny", "output_dir": "out", "max_steps": 1}))
    on_gpu = replace(plan, device=fake_gpu(bf16=True))
    assert "parameters, fp32;" in "\n".join(dry_run_lines(on_gpu))
