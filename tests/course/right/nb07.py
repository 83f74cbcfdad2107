"""Right answers to the exercises of notebook 07, each written differently; the check has to accept them all."""

import copy
import math
import re
from fractions import Fraction
from itertools import combinations

import torch
from torch import nn

from grpo_lab.objective import LOSSES_BY_TOKENS, policy_loss


def read_row_by_row(sequences, prompt_length, eos_token_ids, tokenizer):
    masks, truncated, texts = [], [], []
    for row in sequences[:, prompt_length:].tolist():
        places = [place for place, token in enumerate(row) if token in eos_token_ids]
        length = places[0] + 1 if places else len(row)
        masks.append([place < length for place in range(len(row))])
        truncated.append(not places)
        texts.append(tokenizer.decode(row[:length], skip_special_tokens=True))
    ids = sequences[:, prompt_length:].clone()
    return ids, torch.tensor(masks, device=ids.device), torch.tensor(truncated, device=ids.device), texts


def read_by_lengths(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences.narrow(1, prompt_length, sequences.shape[1] - prompt_length)
    is_end = torch.isin(ids, torch.tensor(eos_token_ids, device=ids.device))
    truncated = is_end.sum(-1) == 0
    lengths = torch.where(truncated, ids.shape[1], is_end.int().argmax(-1) + 1)
    mask = torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]
    rows = [row[: int(n)] for row, n in zip(ids, lengths, strict=True)]
    return ids, mask, truncated, tokenizer.batch_decode(rows, skip_special_tokens=True)


def advantages_by_loops(rewards, config):
    G, values = config.num_generations, rewards.tolist()

    def std(numbers):
        mean = sum(numbers) / len(numbers)
        return (sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)) ** 0.5

    everything, out = [x for x in values if not math.isnan(x)], []
    for start in range(0, len(values), G):
        group = values[start : start + G]
        scored = [x for x in group if not math.isnan(x)]
        for x in group:
            if math.isnan(x) or len(scored) < 2:
                out.append(0.0)
                continue
            centred = x - sum(scored) / len(scored)
            spread = {"none": lambda: 1 - 1e-4, "group": lambda s=scored: std(s), "batch": lambda: std(everything)}
            out.append(centred / (spread[config.scale_rewards]() + 1e-4))
    return torch.tensor(out, dtype=rewards.dtype, device=rewards.device)


def advantages_by_nan_functions(rewards, config):
    table = rewards.unflatten(0, (-1, config.num_generations))
    count = (~table.isnan()).sum(-1, keepdim=True)
    centred = table - table.nanmean(-1, keepdim=True)
    if config.scale_rewards == "group":
        centred = centred / ((centred.square().nansum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt() + 1e-4)
    elif config.scale_rewards == "batch":
        scored = rewards[rewards == rewards]
        centred = centred / ((scored - scored.mean()).square().sum() / max(len(scored) - 1, 1)).sqrt().add(1e-4)
    return torch.where(table.isnan() | (count < 2), 0, centred).flatten()


def frozen_by_parameters(model):
    reference = copy.deepcopy(model)
    reference.train(False)
    for parameter in reference.parameters():
        parameter.requires_grad = False
    return reference


def frozen_by_state(model):
    reference = copy.deepcopy(model)
    reference.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
    for module in reference.modules():
        module.training = False
    return reference.requires_grad_(False)


def silence_recursively(model):
    if isinstance(model, nn.Dropout):
        model.p = 0
    floats = {name for name, value in model.__dict__.items() if type(value) is float}
    for name in floats:
        if name.find("drop") >= 0 or name.removeprefix("input_") == "jitter_noise":
            model.__setattr__(name, 0)
    for child in model.children():
        silence_recursively(child)


def silence_by_names(model):
    of_numbers = re.compile(r".*drop.*|(input_)?jitter_noise")
    for _, module in model.named_modules():
        names = [
            name for name, value in vars(module).items() if isinstance(value, float) and of_numbers.fullmatch(name)
        ]
        names += ["p"] * isinstance(module, nn.Dropout)
        vars(module).update(dict.fromkeys(names, 0.0))


def microbatch_by_advantages(logp, advantages, mask, rows, num_items, *, loss_type="grpo", **settings):
    """Surrogate and KL term are linear in advantage and beta, so the share may be put there."""
    share = 1.0 if loss_type in ("dapo", "cispo", "vespo") else logp.shape[0] / rows
    settings["beta"] = settings.get("beta", 0.0) * share
    return policy_loss(logp, advantages * share, mask, loss_type=loss_type, num_items=num_items, **settings)[0], {}


def microbatch_by_table(logp, advantages, mask, rows, num_items, *, loss_type="grpo", **settings):
    weights = dict.fromkeys(LOSSES_BY_TOKENS, 1)
    loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, num_items=num_items, **settings)
    return weights.get(loss_type, len(mask) / rows) * loss, metrics


def step_by_torch(optimizer, parameters, loss, max_grad_norm):
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    if not torch.isfinite(norm + loss):
        optimizer.zero_grad(set_to_none=False)
        for parameter in parameters:
            parameter.grad = None
        return norm.item(), False
    optimizer.step()
    optimizer.zero_grad()
    return norm.item(), True


def step_early_out(optimizer, parameters, loss, max_grad_norm):
    squares = sum(float(p.grad.double().square().sum()) for p in parameters)
    norm = math.sqrt(squares) if not math.isnan(squares) else squares
    if norm - norm != 0 or loss - loss != 0:
        optimizer.zero_grad()
        return norm, False
    factor = min(1.0, max_grad_norm / (norm + 1e-6))
    for parameter in parameters:
        parameter.grad = parameter.grad * factor
    optimizer.step()
    optimizer.zero_grad()
    return norm, True


def pass_by_product(n, c, k):
    wrong = 1.0
    for drawn in range(k):
        wrong *= max(n - c - drawn, 0) / (n - drawn)
    return 1 - wrong


def pass_by_counting(n, c, k):
    if n > 12:
        return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    return sum(map(any, draws)) / len(draws)


RIGHT = {
    "read_sequences": (read_row_by_row, read_by_lengths),
    "compute_advantages": (advantages_by_loops, advantages_by_nan_functions),
    "silence_dropout": (silence_recursively, silence_by_names),
    "frozen_copy": (frozen_by_parameters, frozen_by_state),
    "microbatch_loss": (microbatch_by_advantages, microbatch_by_table),
    "step_if_finite": (step_by_torch, step_early_out),
    "pass_at_k": (pass_by_product, pass_by_counting),
}
