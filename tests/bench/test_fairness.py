"""Both trainers have the same settings and problems and learn from them alike; tests/engines compares each gradient."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.bench import against, train_worker
from grpo_lab.rollout import end_token_ids
from grpo_lab.tasks import TASKS, addition_problems

SMALL = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8}
IN_PARTS = SMALL | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


def test_trl_samples_neutrally_with_the_same_ends_in_float32(tiny):
    pytest.importorskip("trl")
    config = train_worker.our_config(1, 9, **SMALL, warmup_steps=4)
    rows = addition_problems("train", 100)
    trainer = train_worker.trl_trainer(*tiny, rows, config, train_worker.Watch())
    settings = trainer.generation_config
    assert settings.do_sample and settings.max_new_tokens == config.max_completion_length
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 0, 1.0)
    assert settings.repetition_penalty == 1.0 and settings.min_p is None
    assert sorted(settings.eos_token_id) == end_token_ids(trainer.model, trainer.processing_class)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.device.type for p in trainer.model.parameters()} == {"cpu"}
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
    rows, seen, histories = TASKS["sums"].rows("train", 50), {}, {}
    for trainer in ("ours", "trl"):
        model, tokenizer = copy.deepcopy(tiny[0]), tiny[1]
        model.loaded_for = precision  # as load_policy leaves it
        config = train_worker.our_config(0, 1, precision=precision, **IN_PARTS)
        watch = train_worker.Watch(lambda completions, **_: [float(place % 2) for place in range(len(completions))])
        go = train_worker.prepare(trainer, model, tokenizer, rows, config, watch)
        watch.start()
        with Products() as products:
            go()
        seen[trainer], histories[trainer] = products.dtypes, watch.history
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert any((p != q).any() for p, q in zip(model.parameters(), tiny[0].parameters(), strict=True))
    against.check_same_problems(histories["ours"], histories["trl"])
    assert seen["ours"] == seen["trl"]
    assert {kinds[1:] for kinds in seen["ours"]} == {(dtype, dtype)} and len(seen["ours"]) == 3
