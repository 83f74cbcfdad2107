"""torchao's 8-bit AdamW in pieces: the same as in one, AdamW but for the quantisation, and nothing lost on average."""

import sys

import pytest
import torch
from torchao.optim import AdamW8bit

from grpo_lab.trainer import PolicyOptimizer, optim_8bit
from grpo_lab.trainer.optim_8bit import EightBitAdamW
from tests.support.worlds import make_config


def make(parameters, lr, stochastic_rounding=True, betas=(0.9, 0.999), weight_decay=0.0):
    settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    return EightBitAdamW(parameters, settings, stochastic_rounding)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("piece", [4096, 8192, 2**22])
def test_in_pieces_is_torchaos_own_update_in_one(piece, monkeypatch):
    """Bit for bit where torchao quantises: codes, scales and weights. Piece and block borders coincide."""
    monkeypatch.setattr(optim_8bit, "PIECE", piece)
    start = [0.02 * random(80, 256), 0.02 * random(64, 64), 0.02 * random(300, 64)]
    ours, theirs = ([torch.nn.Parameter(s.bfloat16()) for s in start] for _ in range(2))
    optimizer = make(ours, 1e-3, stochastic_rounding=False, weight_decay=0.1)
    reference = AdamW8bit(theirs, lr=1e-3, weight_decay=0.1)
    for step in range(5):
        for number, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            p.grad = random(*p.shape, seed=10 * step + number).bfloat16()
            q.grad = p.grad.clone()
        optimizer.step()
        with torch.compiler.set_stance("force_eager"):
            reference.step()
    for number, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(p, q)
        for name in ("exp_avg", "exp_avg_sq"):
            for part in ("codes", "scale"):
                mine = [v for k, v in optimizer.tensors().items() if k.startswith(f"{number}.") and f"{name}.{part}" in k]  # fmt: skip  # noqa: E501
                assert torch.equal(torch.cat(mine), getattr(reference.state[q][name], part).flatten())


@pytest.mark.parametrize(("name", "share"), [("bf16", 1.0), ("bf16-naive", 0.02)])
def test_what_arrives_of_200_updates_in_one_direction(name, share):
    torch.manual_seed(0)
    start = (0.02 * random(2**17)).bfloat16()
    weight = torch.nn.Parameter(start.clone())
    optimizer = PolicyOptimizer(torch.nn.ParameterList([weight]), make_config(precision=name))
    for _ in range(200 if name == "bf16-naive" else 20):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-6, loss=0.0)
    steps = 200 if name == "bf16-naive" else 20
    moved = (start.double() - weight.detach().double()).mean().item() / (steps * 1e-6)
    assert moved == pytest.approx(share, abs=0.03 if share < 1 else 0.05)


@pytest.mark.slow
def test_second_moments_too_few_to_be_quantised_follow_the_gradients():
    """In bf16, torchao's choice for them, they would stop short at a third, and never come down again."""
    ours = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = make([ours], 0.0)
    for _ in range(1200):
        ours.grad = torch.ones_like(ours)
        optimizer.step()
    assert optimizer.tensors()["0.0.exp_avg_sq"][0].item() == pytest.approx(1 - 0.999**1200, rel=1e-3)


def test_parameters_that_are_not_contiguous_are_named():
    odd = torch.nn.Parameter(torch.zeros(64, 128, dtype=torch.bfloat16).T)
    with pytest.raises(ValueError, match=r"parameters \[1\] are not contiguous"):
        make([torch.nn.Parameter(torch.zeros(3)), odd], 0.1)


def test_without_torchao_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))])
    with pytest.raises(ImportError, match="pip install torchao.*precision='fp32-master'"):
        PolicyOptimizer(model, make_config(precision="bf16"))
    PolicyOptimizer(model, make_config(precision="bf16-naive"))
