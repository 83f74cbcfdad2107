"""Right answers to the exercises of notebook 01."""

import torch

from tests.course.right_answers import by_loops
from tests.support.oracles import logprobs as oracles


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
    for logp, weight in zip(seq_logp, weights.tolist(), strict=True):
        loss = loss - weight * logp
    return loss / len(seq_logp)


def score_by_loop(seq_logp, rewards):
    return sum(logp.exp().item() * reward * logp for logp, reward in zip(seq_logp, rewards, strict=True))


def sample_row_by_row(model, prompt_ids, prompt_mask, uniform, end, temperature=1.0, top_p=1.0):
    """Sample each row alone, without its padding, by running sums in Python."""
    rows = [
        _one_completion(model, ids[mask].tolist(), numbers.tolist(), end, temperature, top_p)
        for ids, mask, numbers in zip(prompt_ids, prompt_mask, uniform, strict=True)
    ]
    return torch.tensor(rows)


def _one_completion(model, ids, numbers, end, temperature, top_p):
    completion = []
    while len(completion) < len(numbers) and end not in completion:
        tokens = torch.tensor([ids + completion])
        logits = model(tokens, torch.ones_like(tokens).bool())[0, -1] / temperature
        p = (logits - logits.max()).exp()
        p = (p / p.sum()).tolist()
        candidates, total = [], 0.0
        for token in sorted(range(len(p)), key=lambda token: -p[token]):
            if total < top_p:
                candidates.append(token)
                total += p[token]
        reached, u = 0.0, numbers[len(completion)]
        for token in sorted(candidates):
            reached += p[token] / total
            if u < reached:
                break
        completion.append(token)
    return completion + [end] * (len(numbers) - len(completion))


RIGHT = {
    "token_logprobs": (by_loops(oracles.token_logprobs),),
    "token_entropy": (by_loops(oracles.token_entropy),),
    "completion_mask": (mask_by_shifting,),
    "sequence_logprob": (sequence_by_masked_fill,),
    "reinforce_loss": (reinforce_by_loop,),
    "score_function_objective": (score_by_loop,),
    "sample_tokens": (sample_row_by_row,),
}
