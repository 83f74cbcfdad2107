"""`python -m grpo_lab.memory` prints the same plan as a run on a GPU prints before it begins."""

from dataclasses import replace

import pytest
import torch
from transformers import MambaConfig

from grpo_lab.config import precision
from grpo_lab.config.defaults import SIZE_DEPENDENT_SETTINGS
from grpo_lab.memory import GIB, fit_to_memory
from grpo_lab.memory import __main__ as command
from grpo_lab.memory.planning import plan_memory
from grpo_lab.models.loading import ModelWithoutWeights
from grpo_lab.models.shapes import shape_config, shape_of
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompts import longest_prompt
from grpo_lab.task_spec import make_task_spec
from grpo_lab.tasks import TASKS
from grpo_lab.train import read_options
from grpo_lab.trainer.run.inputs import RunInputs
from tests.support.few_fast import few_fast
from tests.support.options_config import config_of_options
from tests.support.refusals import refusal_of
from tests.support.small_policy import make_config, make_policy
from tests.support.tool_policy import add, make_tool_policy


def printed(capsys, *arguments) -> list[str]:
    assert command.main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_memory_command_prints_the_plan_and_the_chosen_candidate(capsys):
    lines = printed(capsys, "--task", "word-problems")
    assert lines[0] == (
        "task word-problems; chosen for 494.0 million parameters: learning_rate 2e-06, num_generations 8, "
        "generation_batch_size 64, per_device_train_batch_size 8, gradient_accumulation_steps 8, "
        "gradient_checkpointing true, max_completion_length 256"
    )
    assert lines[2].startswith("494,032,768 parameters, bf16") and "(128 prompt + 256 response) tokens" in lines[2]
    assert lines[-1] == "chosen: bf16, all activations kept, 8 rows at a time, the first that fits"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--budget", "24"], "fp32-master, all activations kept, 8 rows"),
        (["--budget", "12"], "fp32-master, layers computed again, 8 rows"),
        (["--budget", "8"], "bf16, all activations kept, 8 rows"),
        (["--budget", "6"], "bf16, layers computed again, 8 rows"),
        (["--budget", "24", "--precision", "fp16"], "fp16, all activations kept, 8 rows"),
        (["--budget", "24", "--gradient_checkpointing", "true"], "fp32-master, layers computed again, 8 rows"),
        (["--budget", "13", "--gradient_checkpointing", "false"], "bf16, all activations kept, 8 rows"),
        (["--budget", "8", "--model", "smollm2"], "fp32-master, all activations kept, 16 rows"),
        (["--model", "tiny"], "fp32, all activations kept, 256 rows"),
    ],
    ids=" ".join,
)
def test_memory_command_chooses_the_first_candidate_that_fits_and_keeps_typed_settings(options, chosen, capsys):
    """Qwen2-0.5B and SmolLM2 are planned by name, without their files; the tiny model is planned from its folder."""
    assert f"chosen: {chosen}" in printed(capsys, "--task", "word-problems", *options)[-1]


def test_memory_command_names_remaining_settings_if_nothing_fits(capsys):
    last = printed(capsys, "--budget", "1.5", "--beta", "0.1", "--max_completion_length", "512")[-1]
    assert last.startswith("none of them fits; what is left: max_completion_length below 512, generation_batch_size")
    assert "ref_model_device cpu, or a smaller model" in last


def test_a_model_on_this_machine_is_planned_with_its_own_prompts(capsys):
    lines = printed(capsys, "--model", "tiny")
    assert lines[2].startswith("459,904 parameters, fp32; 256 completions per step x (28 prompt + 64 response) tokens")


TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b
'''


@pytest.fixture
def add_tool(tmp_path) -> str:
    """Return the name of a tool, as `--tools` takes it."""
    (tmp_path / "tools_to_plan.py").write_text(TOOLS, encoding="utf-8")
    return f"{tmp_path / 'tools_to_plan.py'}:add"


def test_the_prompts_of_a_plan_have_the_schemas_of_the_tools(add_tool, tmp_path, capsys):
    model, tokenizer = make_tool_policy()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    schemas = ToolEnvironment([add]).schemas
    rows = make_task_spec(for_bundled_model=False).rows("train", None, seed=0)
    length = longest_prompt(tokenizer, rows, schemas)
    assert length > longest_prompt(tokenizer, rows)
    lines = printed(capsys, "--model", str(tmp_path / "model"), "--tools", add_tool)
    assert any(f" x ({length} prompt + " in line for line in lines)
    assert "model is 'qwen2'; with tools, expected a model on this machine" in refusal_of(
        command.main, "--tools", add_tool
    )


def test_a_task_with_an_environment_is_not_planned_in_parts(capsys):
    many = ["--generation_batch_size", "4096", "--num_generations", "16", "--precision", "bf16", "--budget", "24"]
    words = [*many, "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "256"]
    assert "rollout in " in printed(capsys, "--task", "sums", *words)[-1]
    lines = printed(capsys, "--task", "sums-calculator", *words)
    assert not any("rollout in " in line for line in lines) and lines[-1].startswith("none of them fits")


def test_memory_command_refuses_an_architecture_it_cannot_plan(monkeypatch):
    monkeypatch.setattr(command, "load_component", lambda kind, folder: MambaConfig())
    line = refusal_of(command.main, "--model", "tiny")
    message = "model_config is not of Qwen2's kind: 'MambaConfig' object has no attribute "
    assert message in line and len(line) < 400


def planned_by(monkeypatch, capsys, *arguments):
    """Run the command, and return the configuration that it plans for."""
    configs = []

    def record(model_config, config, **keywords):
        configs.append(config)
        return plan_memory(model_config, config, **keywords)

    monkeypatch.setattr(command, "plan_memory", record)
    printed(capsys, *arguments)
    return configs[0]


TASKS_WITH_OPTIONS = [
    ("gsm8k", "--generation_batch_size", "32"),
    ("chat", "--max_completion_length", "99"),
    ("sums", "--gradient_checkpointing", "false", "--num_generations", "4", "--beta", "0.1"),
]


@pytest.mark.slow
def test_memory_and_train_plan_the_same_run(monkeypatch, capsys):
    parameters = shape_of(shape_config("qwen2")).parameters
    for options in TASKS_WITH_OPTIONS + [(task,) for task in TASKS]:
        train_options = read_options(["--output_dir", "out", "--task", *options])
        expected = config_of_options(train_options, parameters, "cuda")
        with monkeypatch.context() as during:
            config = planned_by(during, capsys, "--task", *options)
        for name in command.PLANNED_SETTINGS + SIZE_DEPENDENT_SETTINGS:
            assert getattr(config, name) == getattr(expected, name), name


def inputs_of(model_config, tokenizer, rows, config) -> RunInputs:
    return RunInputs(ModelWithoutWeights(model_config), tokenizer, rows, None, config)


@pytest.mark.slow
def test_a_run_on_a_gpu_takes_the_first_candidate_that_fits_the_free_memory(monkeypatch):
    tokenizer = make_policy()[1]
    rows = [{"prompt": "a" * length} for length in (3, 9)]
    config = make_config(generation_batch_size=64, num_generations=8, max_completion_length=256)
    inputs = inputs_of(shape_config("qwen2"), tokenizer, rows, config)
    gpu = torch.device("cuda")
    for free, native, fixed, chosen in (
        (40, True, (), ("fp32-master", False)),
        (8, True, (), ("bf16", True)),
        (40, False, (), ("fp16", False)),
        (40, True, ("gradient_checkpointing",), ("fp32-master", False)),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free * GIB, 80 * GIB))
        monkeypatch.setattr(precision, "has_native_bf16", lambda device, native=native: native)
        fitting, lines = fit_to_memory(inputs, gpu, fixed)
        assert (fitting.precision, fitting.gradient_checkpointing) == chosen
        assert f"chosen: {chosen[0]}, " in lines[-1]
    requested = replace(inputs, config=replace(config, precision="bf16"))
    assert fit_to_memory(requested, gpu, ("precision",))[0].precision == "bf16"
    by_microbatch = replace(inputs, config=replace(config, loss_type="bnpo", max_completion_length=1024))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 80 * GIB))
    fitting, lines = fit_to_memory(by_microbatch, gpu)
    assert fitting.microbatch_size == 64, "smaller micro-batches would be another loss"
    assert lines[-1].startswith("none of them fits")
    planned_prompts = []
    tools = ToolEnvironment([add])
    tool_tokenizer = make_tool_policy()[1]
    for environment in (None, tools):
        chats = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        chat_inputs = replace(inputs, tokenizer=tool_tokenizer, dataset=chats, environment=environment)
        _, lines = fit_to_memory(chat_inputs, gpu)
        length = longest_prompt(tool_tokenizer, chats, environment and environment.schemas)
        assert f" x ({length} prompt + " in lines[0]
        planned_prompts.append(length)
    assert planned_prompts[0] < planned_prompts[1]
    unchanged, lines = fit_to_memory(inputs, torch.device("mps"))
    assert unchanged is config and lines == []
    unchanged, lines = fit_to_memory(inputs_of(MambaConfig(), tokenizer, rows, config), gpu)
    assert unchanged is config
    assert len(lines) == 1 and "memory: not planned, since model_config is not of Qwen2's kind" in lines[0]


# --- larger micro-batches on a CPU ------------------------------------------------------------------------------------


def on_a_cpu(shape="smollm2", fixed=(), **settings):
    """Return what `fit_to_memory` returns on a CPU for a run whose longest prompt has nine tokens."""
    sizes = {"generation_batch_size": 64, "num_generations": 8, "per_device_train_batch_size": 16}
    config = make_config(**(sizes | {"gradient_accumulation_steps": 4} | settings))
    model_config = MambaConfig() if shape is None else shape_config(shape)
    rows = [{"prompt": "a" * length} for length in (3, 9)]
    chosen, lines = fit_to_memory(inputs_of(model_config, make_policy()[1], rows, config), torch.device("cpu"), fixed)
    assert chosen.update_batch_size == config.update_batch_size == 64
    assert (chosen is config) == (lines == [])
    return chosen, lines


LENGTHS = ((8, False), (20, False), (40, False), (40, True), (100, False))


@pytest.mark.parametrize(("length", "checkpointing", "shape"), few_fast(LENGTHS, ("smollm2", "qwen2")))
def test_cpu_micro_batch_of_short_completions_is_the_largest_that_needs_no_more_memory(shape, length, checkpointing):
    def update(rows: int, length: int) -> int:
        cut = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 64 // rows}
        config = replace(chosen, max_completion_length=length, **cut)
        planned = plan_memory(shape_config(shape), config, prompt_length=9, precision="fp32", device_type="cpu")
        return planned.totals["update"]

    chosen, lines = on_a_cpu(shape, max_completion_length=length, gradient_checkpointing=checkpointing)
    rows = chosen.microbatch_size
    assert rows == max(rows for rows in (16, 32, 64) if rows == 16 or update(rows, length) <= update(16, 128))
    assert length > 20 or rows == 64
    expected = f"per_device_train_batch_size {rows}, gradient_accumulation_steps {64 // rows}: "
    assert all(line.startswith(expected) for line in lines) and len(lines) == (rows > 16)


@pytest.mark.parametrize(
    "settings",
    [
        {"fixed": ("per_device_train_batch_size",)},
        {"fixed": ("gradient_accumulation_steps",)},
        {"loss_type": "bnpo"},
        {"max_completion_length": 128},
        {"shape": None},
    ],
)
def test_cpu_micro_batch_stays_if_it_is_typed_or_changes_the_loss_or_cannot_be_planned(settings):
    assert on_a_cpu(**({"max_completion_length": 20} | settings))[0].microbatch_size == 16
