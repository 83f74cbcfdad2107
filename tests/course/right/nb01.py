"""Right answers to the exercises of notebook 01, each written differently; the check has to accept them all."""

import torch
from einops import rearrange


def logprobs_by_hand(logits, token_ids, temperature=1.0):
    top = logits.amax(-1, keepdim=True)
    z = (logits - top) / temperature
    chosen = torch.take_along_dim(z, token_ids[..., None], -1)[..., 0]
    return chosen - torch.log(torch.exp(z).sum(-1))


def logprobs_by_cross_entropy(logits, token_ids, temperature=1.0):
    flat = rearrange(logits, "B T V -> (B T) V") / temperature
    loss = torch.nn.functional.cross_entropy(flat, token_ids.flatten(), reduction="none")
    return -loss.view(token_ids.shape)


def entropy_by_categorical(logits, temperature=1.0):
    return torch.distributions.Categorical(logits=logits / temperature).entropy()


def mask_by_shifting(completion_ids, eos_token_id):
    is_end = torch.isin(completion_ids, torch.as_tensor(eos_token_id, device=completion_ids.device))
    ended = is_end.cumsum(1) > 0
    before = torch.zeros_like(ended)
    before[:, 1:] = ended[:, :-1]
    return ~before


def sequence_by_masked_fill(logp, mask):
    return logp.masked_fill(~mask, 0.0).sum(dim=1)


def reinforce_by_loop(seq_logp, weights):
    loss = 0
    for one, weight in zip(seq_logp, weights.tolist(), strict=True):
        loss = loss - weight * one
    return loss / len(seq_logp)


def score_by_loop(seq_logp, rewards):
    return sum(one.exp().item() * reward * one for one, reward in zip(seq_logp, rewards, strict=True))


RIGHT = {
    "token_logprobs": (logprobs_by_hand, logprobs_by_cross_entropy),
    "token_entropy": (entropy_by_categorical,),
    "completion_mask": (mask_by_shifting,),
    "sequence_logprob": (sequence_by_masked_fill,),
    "reinforce_loss": (reinforce_by_loop,),
    "score_function_objective": (score_by_loop,),
}
