"""Advantages and importance weights agree with TRL's GRPOTrainer, which gets its completions and rewards from us."""

import pytest
import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.toys.asynchronous import importance_weights, truncate_weights
from tests.parity.engines import require_engine
from tests.support.agreement import assert_near, draw
from tests.support.small_policy import make_policy

trl = require_engine("trl")

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")

P, G = 3, 4
GROUPS = {
    "drawn": draw(P, G, seed=0).float(),
    "right or wrong": torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 1, 1]]),
    "one prompt all right": torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 1], [0.25, 0, 3, 1]]),
    "large": 1000 * draw(P, G, seed=1).float(),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Return a trainer whose rollout returns two fixed tokens, and whose reward is a column of the row."""
    from datasets import Dataset

    model, tokenizer = make_policy()
    completion = [3, tokenizer.eos_token_id]

    def rollout(prompts, trainer):
        n = len(prompts)
        return {"prompt_ids": [[2]] * n, "completion_ids": [completion] * n, "logprobs": [[0.0, 0.0]] * n}

    return trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, reward, **kwargs: reward,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), num_generations=G, per_device_train_batch_size=P * G,
            use_cpu=True, bf16=False, report_to=[], beta=0.0, disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a", "reward": 0.0}] * P),
        processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_those_of_trl(trainer, scale, name):
    rewards = GROUPS[name]
    trainer.scale_rewards = scale
    rows = [{"prompt": "a", "reward": reward.item()} for reward in rewards.flatten()]
    theirs = trainer._generate_and_score_completions(rows)["advantages"].view(P, G)
    assert theirs.abs().sum() > 0
    assert_near(group_advantages(rewards, scale=scale) / theirs.std(), theirs / theirs.std(), 1e-5)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_importance_weights_are_those_of_trl(trainer, mode, monkeypatch):
    """The rollout returns the sampler's log-probabilities of the two tokens of each completion."""
    sampled_logp = torch.linspace(-3, -0.2, 2 * P * G).view(-1, 2)
    rollout = {
        "prompt_ids": [[2]] * P * G,
        "completion_ids": [[3, trainer.processing_class.eos_token_id]] * P * G,
        "logprobs": sampled_logp.tolist(),
    }
    settings = {"correction": True, "mode": mode, "clip_max": 1.5}
    monkeypatch.setattr(trainer, "rollout_func", lambda *_: rollout)
    monkeypatch.setattr(trainer, "use_vllm", True)
    monkeypatch.setattr(trainer, "_last_loaded_step", trainer.state.global_step, raising=False)
    for name, value in settings.items():
        monkeypatch.setattr(trainer, f"vllm_importance_sampling_{name}", value)
    batch = trainer._generate_and_score_completions([{"prompt": "a", "reward": 0.0}] * (P * G))
    level, mode = mode.split("_")
    weights = importance_weights(batch["old_per_token_logps"], sampled_logp, batch["completion_mask"].bool(), level)
    assert weights.min() < 1.5 < weights.max()
    assert_near(truncate_weights(weights, 1.5, mode), batch["importance_sampling_ratio"], 1e-5)
