"""Wrong answers to the exercise aggregate, as people write them. Each is right but for its one mistake."""

import torch

TOKEN_TYPES = ("dapo", "cispo", "vespo")


def _sums(values, mask):
    return torch.where(mask, values, 0).sum(-1)


def _right(sums, lengths, loss_type, max_completion_length, num_items):
    if loss_type in ("grpo", "sapo"):
        return (sums / lengths.clamp(min=1)).mean()
    if loss_type == "luspo":
        return sums.mean()
    if loss_type == "dr_grpo":
        return sums.sum() / (len(sums) * max_completion_length)
    total = lengths.sum() if num_items is None or loss_type == "bnpo" else torch.as_tensor(num_items)
    return sums.sum() / total.clamp(min=1)


def over_padding(values, mask, loss_type, max_completion_length=None, num_items=None):
    if loss_type in ("grpo", "sapo"):
        return (_sums(values, mask) / mask.shape[1]).mean()
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)


def token_mean_over_padding(values, mask, loss_type, max_completion_length=None, num_items=None):
    if loss_type == "bnpo":
        return _sums(values, mask).sum() / mask.numel()
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)


def unmasked(values, mask, loss_type, max_completion_length=None, num_items=None):
    return _right(values.sum(-1), mask.sum(-1), loss_type, max_completion_length, num_items)


def multiplied(values, mask, loss_type, max_completion_length=None, num_items=None):
    return _right((values * mask).sum(-1), mask.sum(-1), loss_type, max_completion_length, num_items)


def own_tokens(values, mask, loss_type, max_completion_length=None, num_items=None):
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, None)


def update_in_bnpo(values, mask, loss_type, max_completion_length=None, num_items=None):
    loss_type = "dapo" if loss_type == "bnpo" else loss_type
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)


def lengths_in_dr_grpo(values, mask, loss_type, max_completion_length=None, num_items=None):
    loss_type = "grpo" if loss_type == "dr_grpo" else loss_type
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)


def longest(values, mask, loss_type, max_completion_length=None, num_items=None):
    return _right(_sums(values, mask), mask.sum(-1), loss_type, mask.shape[1], num_items)


def rows_left_out(values, mask, loss_type, max_completion_length=None, num_items=None):
    sums, lengths = _sums(values, mask), mask.sum(-1)
    if loss_type in ("grpo", "sapo") and lengths.any():
        return (sums[lengths > 0] / lengths[lengths > 0]).mean()
    return _right(sums, lengths, loss_type, max_completion_length, num_items)


def zero_over_zero(values, mask, loss_type, max_completion_length=None, num_items=None):
    sums, lengths = _sums(values, mask), mask.sum(-1)
    if loss_type in ("grpo", "sapo"):
        return (sums / lengths).mean()
    if loss_type in ("luspo", "dr_grpo"):
        return _right(sums, lengths, loss_type, max_completion_length, num_items)
    return sums.sum() / (lengths.sum() if num_items is None or loss_type == "bnpo" else num_items)


def one_mean_for_all(values, mask, loss_type, max_completion_length=None, num_items=None):
    loss_type = "bnpo" if loss_type in ("grpo", "sapo") else loss_type
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)


def luspo_total(values, mask, loss_type, max_completion_length=None, num_items=None):
    if loss_type == "luspo":
        return _sums(values, mask).sum()
    return _right(_sums(values, mask), mask.sum(-1), loss_type, max_completion_length, num_items)
