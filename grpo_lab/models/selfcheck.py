"""Check of a model before it is trained: the log-probabilities of a few sampled tokens have to be computed alike again.

The fast paths call the layers of a model with masks, positions and caches of ours, and the plain way relies on what
transformers makes of padding and of a cache. Where an architecture has other habits, the sampler is another policy than
the one that is trained. A model for which the two differ is refused.
"""

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rollout import compute_logprobs, evaluating
from grpo_lab.rollout.decoding.dispatch import sample_sequences
from grpo_lab.rollout.decoding.sampling_params import SamplingParams, SamplingRequest
from grpo_lab.rollout.forward.fast_paths import context_length
from grpo_lab.rollout.inputs import LogprobInputs, Prompts

LENGTH, STEPS = 6, 3  # tokens of the longer of two prompts, and of each completion
# Nats a token, in the mean. Float32: ten times what the worst token of a sound model may differ by. A bf16 logit from
# 16 to 32 is exact to 1/16, and the means of sound models on a GPU are below 0.03; float16, and the TensorFloat32 of
# a GPU, are 8 times as fine. What is wrong is seldom wrong by less than a tenth of a nat.
EXACT = 1e-3
TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.02}

_differences: dict[tuple, float] = {}  # of an architecture, as the models of this process had it


def ensure_checked(model) -> None:
    """Check a model; one of each architecture is looked at.

    Raises:
        ValueError: if its weights are not finite, or if what is sampled and what is computed again differ.
    """
    if broken := next((name for name, value in model.named_parameters() if not value.isfinite().all()), None):
        problem = f"has weights that are not finite, first in {broken}"
        raise InputError("model", broken, "expected numbers: it is damaged", found=problem)
    kind = (type(model), model.config.to_json_string(), model.config._attn_implementation, model.dtype, model.device)
    if kind not in _differences:
        _differences[kind] = difference(model)
    exact = TOLERANCE[torch.float16] if torch.backends.cuda.matmul.allow_tf32 else EXACT
    allowed = TOLERANCE.get(model.dtype, exact)
    if not _differences[kind] <= allowed:  # and NaN is not
        name = f"{type(model).__name__} ({model.config.model_type})"
        differ = f"differ by {_differences[kind]:.2g} nats a token (at most {allowed:g})"
        reason = f"cannot be trained here: the log-probabilities of its samples, computed again, {differ}"
        raise InputError("model", name, found=f"is a {name}, which {reason}")


@torch.no_grad()
def difference(model) -> float:
    """Nats a token, in the mean, over two prompts, one of them padded; nothing of the model changes."""
    length = max(3, min(LENGTH, (context_length(model.config) or LENGTH + STEPS) - STEPS))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :2] = False
    with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        endless = SamplingParams(eos_token_ids=(), pad_token_id=0)
        sequences, sampled, *_ = sample_sequences(model, SamplingRequest(Prompts(ids, mask), 2, STEPS, endless))
        completions = sequences[:, length:]
        rows = torch.tensor([0, 0, 1, 1], device=ids.device)
        inputs = LogprobInputs(ids, mask, completions, torch.ones_like(completions, dtype=torch.bool), rows)
        computed, _ = compute_logprobs(model, *inputs, with_entropy=False)
    return (sampled - computed).abs().mean().item()
