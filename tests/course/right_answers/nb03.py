"""Right answers to the exercises of notebook 03."""

from collections import Counter
from itertools import pairwise

import torch


def reward_by_counters(prompts, responses):
    scores = []
    for x, y in zip(prompts.tolist(), responses.tolist(), strict=True):
        included = sum((Counter(x) & Counter(y)).values())
        scores.append(float(included + sum(a <= b for a, b in pairwise(y))))
    return torch.tensor(scores, device=prompts.device)


def responses_by_indexing(logp, responses):
    S, P, T, _ = logp.shape
    s = torch.arange(S)[:, None, None, None]
    p = torch.arange(P)[:, None, None]
    return logp[s, p, torch.arange(T), responses]


def surrogate_by_loops(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    B, T = logp.shape
    total = 0
    for b in range(B):
        A = advantages[b].item()
        for t in range(T):
            r = (logp[b, t] - old_logp[b, t].item()).exp()
            bound = r.clamp(max=1 + epsilon) if A > 0 else r.clamp(min=1 - epsilon)
            total = total - {"naive": A * logp[b, t], "unclipped": r * A, "clipped": bound * A}[loss]
    return total / (B * T)


def loop_by_indexing(policy, optimizer, prompts, reward, rounds, P=16, G=8, inner=4, epsilon=0.2):
    for _ in range(rounds):
        x = prompts[torch.randperm(len(prompts))[:P]].repeat_interleave(G, 0)
        y = torch.distributions.Categorical(logits=policy(x).detach()).sample()
        table = reward(x, y).view(-1, G)
        A = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        old_logp = None
        for _ in range(inner):
            logp = policy(x).log_softmax(-1).gather(-1, y[..., None])[..., 0]
            old_logp = logp.detach() if old_logp is None else old_logp
            r = (logp - old_logp).exp()
            bound = torch.where(A > 0, r.clamp(max=1 + epsilon), r.clamp(min=1 - epsilon))
            loss = -(bound * A).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


RIGHT = {
    "repaired_reward": (reward_by_counters,),
    "response_logprobs": (responses_by_indexing,),
    "surrogate_loss": (surrogate_by_loops,),
    "learn_by_grpo": (loop_by_indexing,),
}
