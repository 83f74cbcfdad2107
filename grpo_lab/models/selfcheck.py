"""Check a model before it is trained: sampler and trainer must give the same log-probabilities of a few tokens.

The fast paths call the layers of a model with masks, positions and caches that this package makes, and the plain path
relies on the way in which transformers treats padding and caches. If an architecture treats one of these differently,
the policy that samples is not the policy that is trained. Such a model is refused (`ensure_checked`). Dropout would
make the two differ in any model, so a run switches it off (`disable_dropout`).
"""

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.base.process_state import restored_random_state
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout import compute_logprobs, evaluation_mode
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.model import context_length
from grpo_lab.rollout.rollout import EncodedPrompts, LogprobInputs
from grpo_lab.rollout.sample import draw_samples

PROMPT_LENGTH, COMPLETION_LENGTH = 6, 3  # tokens of the longer one of two prompts; tokens of each completion
# Largest allowed mean difference, in nats per token. In float32 it is ten times the largest difference of a token in a
# correct model. A bf16 logit between 16 and 32 is exact to 1/16, and the means of correct models on a GPU are below
# 0.03. The rounding of float16, and of a GPU's TensorFloat32, is 8 times as fine. A faulty model nearly always differs
# by more than a tenth of a nat.
FLOAT32_TOLERANCE = 1e-3
TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.02}

_mean_differences: dict[tuple, float] = {}  # {architecture: nats per token}, as measured in this process


def ensure_checked(model) -> None:
    """Check the weights of a model, and check its log-probabilities once for each architecture in a process.

    Raises:
        ValueError: if weights are not finite, or if the log-probabilities of sampler and trainer differ.
    """
    if broken := next((name for name, value in model.named_parameters() if not value.isfinite().all()), None):
        problem = f"has weights that are not finite, first in {broken}"
        raise InputError("model", broken, "expected numbers: it is damaged", problem=problem)
    config = model.config
    architecture = (type(model), config.to_json_string(), config._attn_implementation, model.dtype, model.device)
    if architecture not in _mean_differences:
        _mean_differences[architecture] = mean_logprob_difference(model)
    uses_tf32 = torch.backends.cuda.matmul.allow_tf32
    float32_tolerance = TOLERANCE[torch.float16] if uses_tf32 else FLOAT32_TOLERANCE
    allowed = TOLERANCE.get(model.dtype, float32_tolerance)
    if not _mean_differences[architecture] <= allowed:  # also true for NaN, unlike >
        name = f"{type(model).__name__} ({config.model_type})"
        differ = f"differ by {_mean_differences[architecture]:.2g} nats a token (at most {allowed:g})"
        reason = f"cannot be trained here: the log-probabilities of its samples, computed again, {differ}"
        raise InputError("model", name, problem=f"is a {name}, which {reason}")


@torch.no_grad()
def mean_logprob_difference(model) -> float:
    """Return the mean absolute difference of the log-probabilities of sampler and trainer, in nats per token.

    Two completions are sampled for each of two prompts, one of which is padded. The model is not changed.
    """
    longest_context = context_length(model.config) or PROMPT_LENGTH + COMPLETION_LENGTH
    length = max(3, min(PROMPT_LENGTH, longest_context - COMPLETION_LENGTH))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :2] = False
    with evaluation_mode(model), restored_random_state(seed=0):
        sampling_params = SamplingParams(num_generations=2, max_completion_length=COMPLETION_LENGTH)
        request = SamplingRequest(EncodedPrompts(ids, mask), sampling_params, eos_token_ids=(), pad_token_id=0)
        sequences, sampled_logp, *_ = draw_samples(model, request)
        completions = sequences[:, length:]
        prompt_of_row = torch.tensor([0, 0, 1, 1], device=ids.device)
        inputs = LogprobInputs(ids, mask, completions, torch.ones_like(completions, dtype=torch.bool), prompt_of_row)
        recomputed_logp, _ = compute_logprobs(model, *inputs, with_entropy=False)
    return (sampled_logp - recomputed_logp).abs().mean().item()


def disable_dropout(model: torch.nn.Module) -> None:
    """Switch dropout off permanently, in place, so that sampler and trainer compute the same log-probabilities.

    This covers the modules `torch.nn.Dropout`, and the probabilities that transformers' layers store as numbers, such
    as `attention_dropout`, `layerdrop` and `jitter_noise`. Evaluation mode would not be enough, because gradient
    checkpointing needs training mode.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # [dropout]
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name in ("jitter_noise", "input_jitter_noise")):
                setattr(module, name, 0.0)
