"""Make a random Qwen2 with a few thousand weights, its tokenizer, prompts and rewards, small enough for exact tests."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout
from grpo_lab.trainer import train
from grpo_lab.trainer.experience import Experience

LETTERS = "abcdef0123+=?"  # few, so that a random model often samples an end token; other characters are dropped
MERGES = [("a", "b"), ("c", "d")]
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "=" + "{% endif %}"
)


def make_tokenizer(pad_is_end: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of letters, two merges and three special tokens.

    The sampled tokens "a" and "b" decode to "ab", which encodes to a single token: the round trip changes the ids.
    """
    vocab = {piece: i for i, piece in enumerate([*LETTERS, *("".join(pair) for pair in MERGES)])}
    core = Tokenizer(BPE(vocab=vocab, merges=MERGES))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=END if pad_is_end else PAD, padding_side="left"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer, seed: int = 0, scale: float = 0.4, **settings) -> Qwen2ForCausalLM:
    """Return a random Qwen2 whose predictions depend on its input; a larger scale makes them more certain."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **(sizes | {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128} | settings),
        initializer_range=scale,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids([END, PAD]))
    return model


class ExactNorm(Qwen2RMSNorm):
    """Computes the norm in the precision of the weights; Qwen2's own always computes in float32."""

    def forward(self, hidden):
        return self.weight * hidden * (hidden.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def make_exact(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """Convert all computation of the model to float64, so that equal formulas differ by rounding of 1e-15 only."""
    for module in model.double().modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = ExactNorm
    return model


def make_policy(seed: int = 0, pad_is_end: bool = False, **settings):
    tokenizer = make_tokenizer(pad_is_end)
    return make_model(tokenizer, seed, **settings), tokenizer


def save_policy(folder) -> str:
    """Save a random model and its tokenizer for `load_policy`, and return the folder."""
    for part in make_policy():
        part.save_pretrained(folder)
    return str(folder)


def make_config(**settings) -> GRPOConfig:
    """Return a configuration with steps of 2 prompts and 4 completions of at most 5 tokens each."""
    small = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 5, "max_steps": 2}
    return GRPOConfig(**(small | {"learning_rate": 1e-2, "warmup_steps": 0, "disable_tqdm": True} | settings))


ROWS = [
    {"prompt": [{"role": "user", "content": "1+1=?"}], "answer": "2"},
    {"prompt": "abc", "answer": "d"},
    {"prompt": [{"role": "user", "content": "0"}, {"role": "user", "content": "b+c"}], "answer": "ab"},
    {"prompt": "f", "answer": "1"},
]


def ragged_experience(lengths, prompt_lengths=(4, 9), inactive=(), vocabulary=15, columns=24) -> Experience:
    """Return random tokens in rows of given lengths, with random advantages, which are 0 for the rows in `inactive`."""
    generator = torch.Generator().manual_seed(0)
    B, P, L = len(lengths), len(prompt_lengths), max(prompt_lengths)
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    prompt_mask = torch.arange(L) >= L - torch.tensor(prompt_lengths)[:, None]
    prompt_ids, ids = (torch.randint(vocabulary, size, generator=generator) for size in ((P, L), (B, columns)))
    zeros, prompt_of_row = torch.zeros(B, columns), torch.arange(B) * P // B
    rollout = Rollout.without_environment(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_of_row=prompt_of_row,
        completion_ids=ids,
        mask=mask,
        logp=zeros,
        entropy=zeros,
        truncated=mask[:, -1],
        texts=[f"row {row}" for row in range(B)],
    )
    active = torch.tensor([row not in inactive for row in range(B)])
    return Experience(rollout, zeros[:, 0], torch.randn(B, generator=generator) * active, mask)


def letter_reward(completions, completion_ids, **kwargs) -> list[float]:
    """Return rewards that depend on the sampled tokens, so that they differ within a group."""
    return [sum(ids) % 7 / 2 - len(ids) / 4 for ids in completion_ids]


def length_reward_or_none(completions, completion_ids, **kwargs):
    """Return a reward for completions of more than one token, and None for others."""
    return [None if len(ids) == 1 else float(len(ids)) for ids in completion_ids]


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_weights(first: dict, second: dict) -> bool:
    """Return whether two sets of weights are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def train_small(seed=0, reward=letter_reward, rows=ROWS, model_seed=0, callback=None, saved_options=None, **settings):
    """Make a small training run; return the weights after it, and its history."""
    model, tokenizer = make_policy(seed=model_seed)
    config = make_config(seed=seed, **settings)
    history = train(model, tokenizer, rows, reward, config, callback, saved_options=saved_options)
    return weights(model), history


def without_times(history):
    timed = ("step_time", "tokens_per_second", "time/")
    return [{name: value for name, value in metrics.items() if not name.startswith(timed)} for metrics in history]
