"""Train for a few steps at the shape of a known model, with random weights, on a GPU or on the CPU.

`run_in_process(known_shape.measure, spec)` measures the peak memory, the planned peak, and the changes of the weights.
With a cap, torch refuses every allocation beyond it, so that a large GPU behaves like a small one.
"""

import math
from functools import partial

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, has_native_bf16
from grpo_lab.memory import planning
from grpo_lab.models.shapes import shape_config
from grpo_lab.rollout import Rollout
from grpo_lab.trainer import train
from grpo_lab.trainer.experience import Experience
from tests.support.peak import peak_of_live_tensors

LONG = {"rows": 8, "num_generations": 8, "prompt": 256, "completion": 512, "steps": 2}
SHORT = {"rows": 4, "num_generations": 2, "prompt": 8, "completion": 16, "steps": 2}
CAP = 8 * 10**9  # bytes available on a consumer GPU with 8 GiB
LEARNING_RATE = 1e-5
SAMPLE_SIZE = 1000  # weights of a parameter that are compared before and after


def random_policy(
    shape: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> Qwen2ForCausalLM:
    """Return a freshly initialised model of this shape in eval mode, created on the device in its precision."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(shape_config(shape), dtype=dtype).eval()


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word ("t0", "t1", ...).

    The id of its end token is `vocab_size`, which a model of that size cannot sample, so every completion has its full
    length.
    """
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab_size)} | {"<end>": vocab_size}, unk_token="t0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="t0", padding_side="left")


def make_rows(prompts: int, length: int, vocab_size: int) -> list[dict]:
    """Return `prompts` rows whose prompts have exactly `length` tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (prompts, length), generator=generator).tolist()
    return [{"prompt": " ".join(f"t{token}" for token in row)} for row in ids]


def parity_reward(completions, completion_ids, **columns) -> list[float]:
    """Return rewards that differ between rows, so that random weights, which answer nothing right, get a gradient."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def modes_of(device: torch.device) -> list[str]:
    """Return the precision modes that a device computes in hardware; a GPU without bf16 would emulate it."""
    without_bf16 = device.type == "cuda" and not has_native_bf16(device)
    return ["fp32", "fp16"] if without_bf16 else list(PRECISIONS)


def make_config(spec: dict, **settings) -> GRPOConfig:
    return GRPOConfig(
        precision=spec["mode"],
        num_generations=spec["num_generations"],
        generation_batch_size=spec["rows"],
        max_completion_length=spec["completion"],
        gradient_checkpointing=spec["checkpointing"],
        learning_rate=spec.get("learning_rate", LEARNING_RATE),
        warmup_steps=0,
        save_steps=0,
        disable_tqdm=True,
        **settings,
    )


def make_experience(spec: dict, vocab_size: int, device: torch.device) -> Experience:
    """Return random prompts and completions with all tokens in the loss and advantages of 1 and -1."""
    generator = torch.Generator().manual_seed(0)
    row = torch.arange(spec["rows"], device=device)
    prompt_of_row = row // spec["num_generations"]
    prompt_shape = (spec["rows"] // spec["num_generations"], spec["prompt"])
    prompt_ids = torch.randint(vocab_size, prompt_shape, generator=generator).to(device)
    completion_ids = torch.randint(vocab_size, (len(row), spec["completion"]), generator=generator).to(device)
    prompt_mask, mask, truncated = (torch.ones_like(x, dtype=torch.bool) for x in (prompt_ids, completion_ids, row))
    zeros = torch.zeros(mask.shape, device=device)
    rollout = Rollout.without_environment(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_of_row=prompt_of_row,
        completion_ids=completion_ids,
        mask=mask,
        logp=zeros,
        entropy=zeros,
        truncated=truncated,
        texts=[""] * len(row),
    )
    advantages = torch.where(row % 2 == 0, 1.0, -1.0)
    return Experience(rollout, advantages, advantages, mask)


def measure(spec: dict) -> dict:
    """Train, and return peak bytes, planned bytes, and measures of how the weights changed."""
    device = torch.device(spec["device"])
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    if spec.get("cap"):
        torch.cuda.set_per_process_memory_fraction(min(spec["cap"] / total, 1.0))
    done = {}
    peak = _peak_bytes(lambda: done.update(train_steps(spec, device)), device)
    plan = plan_for(spec)
    return done | {
        "peak": peak,
        "reserved": torch.cuda.max_memory_reserved(device) if total else None,
        "planned": plan.peak,
    }


def _peak_bytes(call, device: torch.device) -> int:
    """Return the peak bytes of a call: live tensors on a CPU, all that torch's allocator gives out on a GPU."""
    if device.type != "cuda":
        return peak_of_live_tensors(call)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def train_steps(spec: dict, device: torch.device) -> dict:
    model = random_policy(spec["shape"], device, PRECISIONS[spec["mode"]].weights)
    vocabulary, config = model.config.vocab_size, make_config(spec, max_steps=spec["steps"])
    rows = make_rows(config.prompts_per_step * spec["steps"], spec["prompt"], vocabulary)
    before, reached = sample_weights(model), watch_gradients(model)
    history = train(model, make_tokenizer(vocabulary), rows, parity_reward, config)
    after = sample_weights(model)
    moved = [(before[name] != after[name]).float().mean().item() for name in before]
    return {
        "steps": len(history),
        "finite": all(math.isfinite(step[name]) for step in history for name in ("loss", "grad_norm")),
        "nonfinite_steps": history[-1]["nonfinite_steps"],
        "parameters": len(before),
        "parameters_with_gradient": len(reached),
        "parameters_moved": sum(share > 0 for share in moved),
        "weights_moved": sum(moved) / len(moved),
        "logp_difference_max": max(step["sampling/logp_difference_max"] for step in history),
    }


def sample_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sample of the tensor's numbers, at equal distances."""
    return tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLE_SIZE)]


def sample_weights(model) -> dict[str, torch.Tensor]:
    return {name: sample_numbers(p).to("cpu", copy=True) for name, p in model.named_parameters()}


def watch_gradients(model) -> set[str]:
    """Return a set that training fills with the names of the parameters with a finite gradient other than zero."""
    reached = set()

    def note(name, parameter):
        sample = sample_numbers(parameter.grad)
        if sample.isfinite().all() and sample.any():
            reached.add(name)

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(note, name))
    return reached


def plan_for(spec: dict) -> planning.MemoryPlan:
    machine = {"precision": spec["mode"], "device_type": spec["device"]}
    return planning.plan_memory(shape_config(spec["shape"]), make_config(spec), prompt_length=spec["prompt"], **machine)


def skip_unless_possible(mode: str) -> None:
    """Skip the test of a precision that this GPU does not have."""
    if mode not in modes_of(torch.device("cuda")):
        pytest.skip("this GPU has no bf16")
