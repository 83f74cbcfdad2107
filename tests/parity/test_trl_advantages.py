"""`group_advantages` against the advantages of a real GRPOTrainer, which gets its completions and rewards from us."""

import pytest
import torch

from grpo_lab.advantages import group_advantages
from tests.parity.engines import engine
from tests.support.agreement import assert_near, draw

trl = engine("trl")

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
    """A two-layer model that never generates: the rollout returns one token, the reward function what the row says."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<pad>": 0, "<eos>": 1, "question": 2, "answer": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip

    def rollout(prompts, trainer):
        n = len(prompts)
        return {"prompt_ids": [[2]] * n, "completion_ids": [[3, 1]] * n, "logprobs": [[0.0, 0.0]] * n}

    return trl.GRPOTrainer(
        model=Qwen2ForCausalLM(config),
        reward_funcs=lambda completions, reward, **kwargs: reward,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), num_generations=G, per_device_train_batch_size=P * G,
            use_cpu=True, bf16=False, report_to=[], beta=0.0, disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "question", "reward": 0.0}] * P),
        processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages(trainer, scale, name):
    rewards = GROUPS[name]
    trainer.scale_rewards = scale
    rows = [{"prompt": "question", "reward": reward.item()} for reward in rewards.flatten()]
    theirs = trainer._generate_and_score_completions(rows)["advantages"].view(P, G)
    assert theirs.abs().sum() > 0
    assert_near(group_advantages(rewards, scale=scale) / theirs.std(), theirs / theirs.std(), 1e-5)
