"""The number of parts of a rollout that fit into memory, and the bytes that a row takes."""

import math

import torch

from grpo_lab.rollout.decoding.cache import InPlaceCache
from grpo_lab.rollout.decoding.gpu_memory import fewest_parts, free_gpu_bytes, parts_that_fit
from tests.support.small_policy import make_policy


def test_a_rollout_is_cut_no_finer_than_it_has_to_be():
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=320) == 1
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=319) == 2
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=191) == 4
    assert fewest_parts(6, 4, row_bytes=10, noise_bytes=1, free_bytes=110) == 3
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=0) == 8, "what is left is to try"


def test_the_parts_that_fit_follow_from_cache_and_logits_of_the_rows():
    model, _ = make_policy()
    config, columns = model.config, 64
    cache_bytes = 4 * InPlaceCache(model, 1, columns, torch.zeros(1, dtype=torch.long)).keys[0].numel()
    row_bytes = 2 * config.num_hidden_layers * cache_bytes + 4 * 6 * config.vocab_size
    assert parts_that_fit(model, 8, 4, columns, 32 * row_bytes) == 1
    assert parts_that_fit(model, 8, 4, columns, 32 * row_bytes - 1) == 2
    assert free_gpu_bytes(torch.device("cpu")) == math.inf and parts_that_fit(model, 8, 4, columns, math.inf) == 1
