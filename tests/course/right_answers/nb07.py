"""Right answers to the exercises of notebook 07."""

import math

import torch

from grpo_lab.objective import policy_loss


def read_row_by_row(sequences, prompt_length, eos_token_ids, tokenizer):
    masks, truncated, texts = [], [], []
    for row in sequences[:, prompt_length:].tolist():
        ends = [position for position, token in enumerate(row) if token in eos_token_ids]
        length = ends[0] + 1 if ends else len(row)
        masks.append([position < length for position in range(len(row))])
        truncated.append(not ends)
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


def microbatch_by_advantages(logp, advantages, mask, rows, num_items, *, loss_type="grpo", **settings):
    """Scale advantages and beta by the share of the micro-batch, since surrogate and KL term are linear in them."""
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


def training_prompt_by_prompt(
    model, optimizer, prompts, sample, reward, end, steps, num_generations=4, num_iterations=2, epsilon=0.2
):
    earned, G = [], num_generations
    for _ in range(steps):
        rows = [prompt.expand(G, -1) for prompt in prompts]
        written = [sample(model, own) for own in rows]
        rewards = [reward(own, completion_ids) for own, completion_ids in zip(rows, written, strict=True)]
        advantages = torch.cat([(r - r.mean()) / (r.std() + 1e-4) for r in rewards])[:, None]
        ids, completion_ids = torch.cat(rows), torch.cat(written)
        counts = ((completion_ids == end).cumsum(1) - (completion_ids == end).long() == 0).double()
        old_logp, L = None, ids.shape[1]
        for _ in range(num_iterations):
            logits = model(torch.cat([ids, completion_ids], 1)).log_softmax(-1)
            logp = logits[:, L - 1 : -1].gather(-1, completion_ids[..., None])[..., 0]
            old_logp = logp.detach() if old_logp is None else old_logp
            ratio = (logp - old_logp).exp()
            gain = torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)
            loss = -((gain * counts).sum(1) / counts.sum(1)).mean()
            for parameter in model.parameters():
                parameter.grad = None
            loss.backward()
            optimizer.step()
        earned.append(float(torch.cat(rewards).mean()))
    return earned


def batch_by_lists(sample, prompts, size):
    chosen, everything, start = [], [], 0
    while len(chosen) < size and start < len(prompts):
        batch = prompts[start : start + size]
        for prompt, group in zip(batch, sample(batch), strict=True):
            applying = group[~group.isnan()].tolist()
            everything += applying
            if len(set(applying)) > 1:
                chosen.append((prompt, group))
        start += size
    mean = math.fsum(everything) / len(everything)
    if not chosen:
        return prompts[:0], group.new_zeros(0, len(group)), mean
    chosen = chosen[:size]
    return torch.stack([p for p, _ in chosen]), torch.stack([g for _, g in chosen]), mean


RIGHT = {
    "read_sequences": (read_row_by_row,),
    "compute_advantages": (advantages_by_nan_functions,),
    "microbatch_loss": (microbatch_by_advantages,),
    "step_if_finite": (step_early_out,),
    "train_by_grpo": (training_prompt_by_prompt,),
    "dynamic_sampling": (batch_by_lists,),
}
