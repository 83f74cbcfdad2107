"""Every function of the mathematics names the tensor whose shape does not fit."""

import re

import pytest
import torch

from grpo_lab.advantages import best_of_group, group_advantages, process_advantages, return_to_go, rloo_advantages
from grpo_lab.kl import kl_estimate, kl_exact, kl_in_reward
from grpo_lab.logprobs import chunked_token_logprobs, completion_mask, token_entropy, token_logprobs
from grpo_lab.objective import (
    aggregate,
    cispo_surrogate,
    clipped_surrogate,
    gspo_token_ratio,
    importance_ratio,
    policy_loss,
    sapo_surrogate,
    vespo_surrogate,
)
from grpo_lab.policy_gradient import reinforce_loss, sequence_logprob
from grpo_lab.toys.sorting import kl_penalty, repaired_reward, response_logprobs, surrogate_loss


def f(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def b(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


def n(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


PG, PGT, BT = "(P, G)", "(P, G, T)", "(B, T), where B = 2 and T = 3"
ROWS = "(B,) or (B, T), where B = 2 and T = 3"
SHAPES = [
    (token_logprobs, (f(1, 2, 3), n(1, 3)), "token_ids has shape (1, 3); expected (B, T), where B = 1 and T = 2"),
    (token_entropy, (f(2, 3),), "logits has shape (2, 3); expected (B, T, V)"),
    (
        chunked_token_logprobs,
        (f(2, 3, 4), f(4, 5), n(2, 3)),
        "lm_head_weight has shape (4, 5); expected (V, D), where V = 4 and D = 4",
    ),
    (completion_mask, (n(5), 1), "completion_ids has shape (5,); expected (B, T)"),
    (group_advantages, (f(6),), f"rewards has shape (6,); expected {PG}"),
    (rloo_advantages, (f(6),), f"rewards has shape (6,); expected {PG}"),
    (best_of_group, (f(2, 3, 4),), f"rewards has shape (2, 3, 4); expected {PG}"),
    (
        process_advantages,
        (f(2, 3, 4), b(2, 3, 1)),
        f"step_mask has shape (2, 3, 1); expected {PGT}, where P = 2 and G = 3 and T = 4",
    ),
    (return_to_go, (f(2, 3), 0.9), f"rewards has shape (2, 3); expected {PGT}"),
    (kl_estimate, (f(4, 6), f(4, 5)), "ref_logp has shape (4, 5); expected (B, T), where B = 4 and T = 6"),
    (kl_exact, (f(1, 2, 3), f(1, 2, 4)), "ref_logits has shape (1, 2, 4); expected (B, T, V), where "),
    (kl_in_reward, (f(3), f(2, 3), f(2, 3), b(2, 3), 0.1), "rewards has shape (3,); expected (B,), where B = 2"),
    (importance_ratio, (f(2, 3), f(1, 3), b(2, 3)), f"old_logp has shape (1, 3); expected {BT}"),
    (gspo_token_ratio, (f(2, 3), f(2, 1), b(2, 3)), f"old_logp has shape (2, 1); expected {BT}"),
    (clipped_surrogate, (f(2, 3), f(3)), f"advantages has shape (3,); expected {ROWS}"),
    (cispo_surrogate, (f(2, 3), f(2, 3), f(1, 3), 5.0), f"advantages has shape (1, 3); expected {ROWS}"),
    (sapo_surrogate, (f(2, 3), f(3)), f"advantages has shape (3,); expected {ROWS}"),
    (vespo_surrogate, (f(2, 3), f(2, 3), b(2, 3), f(3)), f"advantages has shape (3,); expected {ROWS}"),
    (aggregate, (f(2, 4), b(2, 3), "grpo"), f"values has shape (2, 4); expected {BT}"),
    (policy_loss, (f(2, 3), f(2), b(2, 1)), f"mask has shape (2, 1); expected {BT}"),
    (policy_loss, (f(2, 3), f(1, 3), b(2, 3)), f"advantages has shape (1, 3); expected {ROWS}"),
    (policy_loss, (f(2, 3), f(2), b(2, 3), f(1, 3)), f"old_logp has shape (1, 3); expected {BT}"),
    (policy_loss, (f(2, 3), f(2), b(2, 3), None, f(2, 1)), f"ref_logp has shape (2, 1); expected {BT}"),
    (policy_loss, (f(2, 3), f(2), f(2, 3)), "mask is torch.float32; expected torch.bool"),
    (sequence_logprob, (f(2, 3), n(2, 3)), "mask is torch.int64; expected torch.bool"),
    (kl_in_reward, (f(2), f(2, 3), f(2, 3), f(2, 3), 0.1), "mask is torch.float32; expected torch.bool"),
    (process_advantages, (f(1, 2, 3), n(1, 2, 3)), "step_mask is torch.int64; expected torch.bool"),
    (process_advantages, (f(1, 2, 0), b(1, 2, 0)), "min(step_rewards.shape[1:]) is 0; it must be at least 1"),
    (best_of_group, (f(2, 0),), "rewards.shape[1] is 0; it must be at least 1"),
    (token_logprobs, (f(1, 2, 3), f(1, 2)), "token_ids is torch.float32; expected an integer dtype, such as torch"),
    (completion_mask, (n(1, 2), None), "eos_token_id is None; expected an end token, or a list of them"),
    (completion_mask, (f(1, 2), 1), "completion_ids is torch.float32; expected an integer dtype, such as torch.int64"),
    (repaired_reward, (f(1, 2), n(1, 2)), "prompts is torch.float32; expected an integer dtype, such as torch.int64"),
    (reinforce_loss, (f(3), f(3, 1)), "weights has shape (3, 1); expected (B,), where B = 3"),
    (
        response_logprobs,
        (f(1, 2, 3, 4), n(1, 2, 5, 4)),
        "responses has shape (1, 2, 5, 4); expected (S, P, G, T), where ",
    ),
    (kl_penalty, (f(2, 3), f(1, 3), 0.1), f"ref_logp has shape (1, 3); expected {BT}"),
    (surrogate_loss, (f(2, 3), f(2, 3), f(3)), "advantages has shape (3,); expected (B,), where B = 2"),
]


def test_a_wrong_shape_is_named(no_checker):
    for function, arguments, message in SHAPES:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(*arguments)
            pytest.fail(f"{function.__name__}: no error, expected {message}")
