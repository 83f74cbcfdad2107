"""A single test, on which test_mutants tries the mutation test."""

import torch

from grpo_lab.kl import kl_estimate


def test_k1():
    assert kl_estimate(torch.ones(1, 1), torch.zeros(1, 1), "k1").item() == 1
