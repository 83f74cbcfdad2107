"""On a card: a captured step of Llama, and the plain way of other architectures, against each model itself."""

import pytest
import torch

from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.rollout.fast_paths import is_fast
from tests.support.architectures import make_architecture
from tests.support.sampling import logprobs_of, sample, tokens_of

pytestmark = pytest.mark.gpu
PROMPTS = ["abc?+ef0123", "d"]


@pytest.mark.parametrize("name", ["llama", "qwen3", "granite", "gemma2", "mistral (windows)", "mamba"])
def test_what_is_drawn_and_computed_is_what_the_model_says(name):
    model, tokenizer = make_architecture(name)
    model.to("cuda")
    ensure_checked(model)
    assert is_fast(model) is (name in ("llama", "qwen3"))
    rollout = sample(model, tokenizer, PROMPTS, length=8, generations=3)
    with torch.no_grad():
        computed = logprobs_of(model, rollout)[0]
        for b in range(len(rollout.mask)):
            prompt, completion = (torch.tensor(ids, device="cuda") for ids in tokens_of(rollout, b))
            logits = model(torch.cat([prompt, completion])[None], use_cache=False).logits[0].double()
            own = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, completion[:, None])[:, 0]
            for logp in (rollout.logp, computed):
                assert (logp[b, rollout.mask[b]] - own).abs().max() < 1e-3
