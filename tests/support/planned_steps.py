"""Make training steps at small shapes, whose memory is compared with the memory plan."""

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, autocast, set_origin
from grpo_lab.memory import MemoryPlan, plan_memory
from grpo_lab.memory.phases import resident_bytes
from grpo_lab.models import shapes
from grpo_lab.models.shapes import shape_config
from grpo_lab.rollout import encode_prompts, sample_completions
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient, logprobs_without_gradient
from tests.support.known_shape import random_policy
from tests.support.small_policy import make_tokenizer, ragged_experience

# Other proportions: separate embeddings for input and output, and a narrower MLP.
UNTIED = shapes.SHAPES["small"] | {
    "vocab_size": 3000,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}


def config_of_sizes(T=48, G=4, B=8, b=8, **others):
    sizes = {"per_device_train_batch_size": b, "gradient_accumulation_steps": B // b, "disable_tqdm": True}
    return GRPOConfig(num_generations=G, generation_batch_size=B, max_completion_length=T, **(sizes | others))


def plan_step(shape, precision, config, L=16, device_type="cpu", **others) -> MemoryPlan:
    return plan_memory(
        shape_config(shape), config, prompt_length=L, precision=precision, device_type=device_type, **others
    )


def planned_bytes(memory_plan: MemoryPlan, phase: str) -> int:
    """Return the planned bytes of a phase beyond those before the step."""
    return memory_plan.totals[phase] - sum(resident_bytes(memory_plan.sizes).values())


def policy(shape, precision, config):
    model = random_policy(shape, dtype=PRECISIONS[precision].weights)
    set_origin(model, precision=precision)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    return model


def full_experience(model, config, L):
    """Return the worst case that is planned for: completions of full length, and one padded prompt."""
    B, T, P = config.generation_batch_size, config.max_completion_length, config.prompts_per_step
    prompts = [L, L - 1, *[L] * P][:P]
    return ragged_experience([T] * B, prompts, vocabulary=model.config.vocab_size, columns=T)


def update_and_logprobs(shape, precision, config, L):
    """Return two functions that run the phases `update` and `logprobs`."""
    model = policy(shape, precision, config)
    experience = full_experience(model, config, L)
    optimizer = PolicyOptimizer(model, config)  # makes no step

    def update():
        accumulate_gradient(model, optimizer, experience, config)
        model.zero_grad()

    return update, lambda: logprobs_without_gradient(model, experience, config)


def rollout_of(precision, T, B):
    """Return a function that samples 8 full-length completions per prompt, its settings, and the prompt length."""
    model, tokenizer = random_policy("small", dtype=PRECISIONS[precision].weights), make_tokenizer()
    model.generation_config.eos_token_id = None
    set_origin(model, precision=precision)
    prompts = ["a" * (30 - number % 2) for number in range(B // 8)]
    config = config_of_sizes(T=T, G=8, B=B, b=B)

    def rollout():
        with autocast(model, config):
            return sample_completions(model, tokenizer, prompts, 8, T)

    return rollout, config, encode_prompts(tokenizer, prompts)[0].shape[1]
