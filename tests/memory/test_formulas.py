"""Each formula of the memory planner against numbers worked out by hand."""

from dataclasses import replace

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import formulas, phases
from grpo_lab.memory.phases import RunSizes
from grpo_lab.models.shapes import shape_config, shape_of
from grpo_lab.rollout.forward import model_logprobs
from tests.support.planned_steps import config_of_sizes

QWEN = shape_of(shape_config("qwen2"))


def test_parts_of_qwen2_in_half_precision_are_the_numbers_worked_out_by_hand():
    n = 494_032_768
    assert formulas.weight_bytes(n, 2) == 988_065_536
    assert formulas.cache_bytes(QWEN, 1, 2) == 12 * 1024
    assert formulas.cache_bytes(QWEN, 8 * 768, 2) == 75_497_472
    assert formulas.head_logprobs_bytes(QWEN, 4096, 448, 2) == 544_538_624
    assert formulas.head_logprobs_bytes(QWEN, 100, None, 2) == 10 * 100 * 151_936
    assert formulas.head_update_bytes(QWEN, 4096, 448, 2) == 544_538_624 + 544_538_624
    assert formulas.head_update_bytes(QWEN, 4096, 55, 2) == 544_538_624 + 272_269_312
    assert formulas.head_update_bytes(QWEN, 4096, 55, 4) == 544_538_624 + 8 * 55 * 151_936
    assert formulas.head_update_bytes(QWEN, 100, None, 2) == 16 * 100 * 151_936
    assert formulas.layer_token_bytes(QWEN, 2, 2) == 2 * (6 * 896 + 4 + 2 * 896) + 6 * 896 + 4 * 14 + 8 * 4864 == 58_688
    assert formulas.layer_token_bytes(QWEN, 2, 4, 3) == 2 * (8 * 896 + 4 + 2 * 896) + 6 * 896 + 56 + 8 * 4864 + 6 * 896
    assert formulas.forward_bytes(QWEN, 10, 2, 4) == 10 * (29_184 + 14_336)


def test_a_step_of_qwen2_in_half_precision_is_made_of_numbers_worked_out_by_hand():
    s = RunSizes(QWEN, config_of_sizes(T=512, G=8), PRECISIONS["bf16"], 256, "cuda")
    assert phases.rollout_snapshots(s)[1]["sampling"] == 29_171_712
    assert s.layer_tokens == 256 + 8 * 511 and replace(s, shares_prompts=False).layer_tokens == 8 * 767
    assert replace(s, config=config_of_sizes(T=512, G=8, B=24, b=12)).layer_tokens == 3 * 256 + 12 * 511
    assert phases.layer_activation_bytes(s) == 58_688 * s.layer_tokens + 2 * 2 * 2 * 64 * (8 * 768 + 256)
    assert phases.mask_bytes(s) == 7 * (6_279_168 + 2 * 256 * 256)
    assert phases.update_snapshots(s)[3]["activations"] - phases.layer_activation_bytes(s) == 19_456 * s.layer_tokens
    fp32 = replace(s, precision=PRECISIONS["fp32"])
    assert phases.resident_bytes(fp32)["Adam's moments"] == 3_952_262_144
    assert phases.optimizer_snapshots(fp32)[0]["Adam at work"] == 0
    assert phases.optimizer_snapshots(s)[0]["Adam at work"] == 117_440_512
    assert (
        phases.optimizer_snapshots(replace(s, shape=replace(QWEN, parameter_sizes=(1000,))))[0]["Adam at work"]
        == 28_000
    )


def test_head_chunk_sizes_by_device_and_vocabulary():
    limit, chunk = model_logprobs.MAX_LOGITS_AT_ONCE // 151_936, model_logprobs.head_chunk_tokens
    assert chunk(limit, 151_936, 896, "cuda") is None
    assert chunk(limit + 1, 151_936, 896, "cuda") == limit + 1 < 448
    assert chunk(4096, 151_936, 896, "cuda") == 448
    assert chunk(4096, 151_936, 896, "cpu") == 55


def test_a_parameter_is_quantised_if_it_is_large_and_made_of_whole_blocks():
    assert formulas.adam_8bit_bytes(4096) == 2 * (4096 + 64)
    assert formulas.adam_8bit_bytes(4095) == 8 * 4095 and formulas.adam_8bit_bytes(3840) == 8 * 3840
    assert formulas.adam_8bit_bytes(4097) == 8 * 4097
    assert formulas.adam_8bit_bytes(2**22 + 256) == 2 * (2**22 + 256 + 4 * (2**14 + 1))
