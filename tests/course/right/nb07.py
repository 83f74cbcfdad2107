"""Right answers to the exercises of notebook 07, each written differently; the check has to accept them all."""

import copy
import math

import torch

from grpo_lab.objective import policy_loss


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


def microbatch_by_advantages(logp, advantages, mask, rows, num_items, *, loss_type="grpo", **settings):
    """Surrogate and KL term are linear in advantage and beta, so the share may be put there."""
    share = 1.0 if loss_type in ("dapo", "cispo", "vespo") else logp.shape[0] / rows
    settings["beta"] = settings.get("beta", 0.0) * share
    return policy_loss(logp, advantages * share, mask, loss_type=loss_type, num_items=num_items, **settings)[0], {}


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


RIGHT = {
    "read_sequences": (read_row_by_row,),
    "compute_advantages": (advantages_by_nan_functions,),
    "frozen_copy": (frozen_by_parameters,),
    "microbatch_loss": (microbatch_by_advantages,),
    "step_if_finite": (step_early_out,),
}
