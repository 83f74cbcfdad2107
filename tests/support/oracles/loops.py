"""Compute sums by loops, and convert nested lists of scalars to tensors."""

import torch


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)


def total(terms) -> torch.Tensor:
    answer = zero()
    for term in terms:
        answer = answer + term
    return answer


def table(rows) -> torch.Tensor:
    """Convert nested lists of scalars to one float64 tensor that keeps their graph."""
    if isinstance(rows, list):
        return torch.stack([table(row) for row in rows])
    return rows.double() if isinstance(rows, torch.Tensor) else torch.tensor(float(rows), dtype=torch.float64)
