"""Log-probabilities, entropy and completion mask as literal loops."""

import torch

from tests.support.oracles.loops import table, total


def log_softmax(row) -> list:
    """The logarithm of the softmax of a row. The largest logit is subtracted, or exp(1e4) would overflow."""
    top = max(x.detach().item() for x in row)
    log_normaliser = top + torch.log(total(torch.exp(x - top) for x in row))
    return [x - log_normaliser for x in row]


def token_logprobs(logits, token_ids, temperature=1.0) -> torch.Tensor:
    B, T, _ = logits.shape
    return table(
        [
            [log_softmax([x / temperature for x in logits[b, t]])[int(token_ids[b, t])] for t in range(T)]
            for b in range(B)
        ]
    )


def token_entropy(logits, temperature=1.0) -> torch.Tensor:
    B, T, _ = logits.shape
    rows = [[log_softmax([x / temperature for x in logits[b, t]]) for t in range(T)] for b in range(B)]
    return table([[total(-torch.exp(x) * x for x in log_p) for log_p in row] for row in rows])


def completion_mask(token_ids, eos_token_id) -> torch.Tensor:
    mask = []
    for row in token_ids.tolist():
        row_mask, ended = [], False
        for token in row:
            row_mask.append(not ended)
            ended = ended or token == eos_token_id
        mask.append(row_mask)
    return torch.tensor(mask, dtype=torch.bool)
