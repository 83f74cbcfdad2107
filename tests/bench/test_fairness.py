"""Both trainers sample and compute alike; tests/engines compares problems, settings and each gradient."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import end_token_ids
from grpo_lab.tasks import TASKS
from grpo_lab.train.engines.options import OURS, TRL, Engine

IN_PARTS = {
    "num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8, "max_steps": 1, "disable_tqdm": True,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip


def spread(completions, **_):
    return [float(place % 2) for place in range(len(completions))]


def test_trl_samples_neutrally_with_the_same_ends(tiny):
    trl = pytest.importorskip("grpo_lab.train.engines.trl")
    config = GRPOConfig(**IN_PARTS, precision="fp32")
    trainer = trl.make_trainer(*tiny, TASKS["sums"].rows("train", 8), spread, config, trl.Steps(config))
    settings = trainer.generation_config
    assert settings.do_sample and settings.max_new_tokens == config.max_completion_length
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 0, 1.0)
    assert settings.repetition_penalty == 1.0 and settings.min_p is None
    assert sorted(settings.eos_token_id) == end_token_ids(trainer.model, trainer.processing_class)
    assert not trainer.model.is_gradient_checkpointing and trainer.ref_model is None


class Products(TorchDispatchMode):
    """Notes the dtypes of all products of matrices, after autocast; those of a batch are the rotary embedding's."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm") or name.startswith("_scaled_dot_product"):
            self.dtypes.add((name.removesuffix("_backward"), arguments[0].dtype, arguments[1].dtype))
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [pytest.param("fp32", torch.float32, marks=pytest.mark.slow), ("fp32-master", torch.bfloat16)],
)
def test_both_compute_in_the_same_precision_and_keep_float32_weights(precision, dtype, tiny):
    pytest.importorskip("trl")
    seen = []
    for trainer in (OURS, TRL):
        model, config = copy.deepcopy(tiny[0]), GRPOConfig(**IN_PARTS, precision=precision)
        with Products() as products:
            Engine(trainer).run(model, tiny[1], TASKS["sums"].rows("train", 50), spread, config)
        seen.append(products.dtypes)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert any((p != q).any() for p, q in zip(model.parameters(), tiny[0].parameters(), strict=True))
    assert seen[0] == seen[1]
    assert {kinds[1:] for kinds in seen[0]} == {(dtype, dtype)} and len(seen[0]) == 3
