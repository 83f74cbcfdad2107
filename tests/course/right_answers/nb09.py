"""Right repairs in assignment 09."""

import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.kl import kl_exact
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import policy_loss


def stop_by_the_token_before(table, completion_ids, advantages, end, learning_rate=1.0):
    policy = table.clone().requires_grad_()
    before = completion_ids.roll(1, dims=1)
    before[:, 0] = 0
    logp = policy.log_softmax(-1)[before, completion_ids]
    sampled = before != end
    loss = -(logp * advantages[:, None])[sampled].mean()
    return table - learning_rate * torch.autograd.grad(loss, policy)[0]


def stay_without_in_place(logits, rewards, beta, learning_rate, steps):
    policy, distances = logits, []
    for _ in range(steps):
        policy = policy.detach().requires_grad_()
        kl = kl_exact(policy[None], logits[None]).mean()
        loss = beta * kl - (policy.softmax(-1) * rewards).sum(-1).mean()
        policy = policy - learning_rate * torch.autograd.grad(loss, policy)[0]
        distances.append(kl.item())
    return policy.detach(), distances


def steps_in_float32(weights, inputs, targets, learning_rate, steps):
    master = weights.to(torch.float32)
    for _ in range(steps):
        missing = inputs @ master - targets
        master = master - learning_rate * 2 * missing @ inputs / len(inputs)
    return master.to(weights.dtype)


def steps_onto_a_model(weights, inputs, targets, learning_rate, steps):
    model, master = weights.clone().requires_grad_(), weights.double()
    for _ in range(steps):
        loss = (inputs.bfloat16() @ model - targets).square().mean()
        master -= learning_rate * torch.autograd.grad(loss, model)[0]
        model.data.copy_(master)
    return master.bfloat16()


def accuracy_from_the_right_answers(model, prompts, answers):
    """Compare in one forward pass: a greedy answer is right if each token is right after the right tokens before it."""
    before, P = model.training, prompts.shape[1]
    logits = model.eval()(torch.cat([prompts, answers], dim=1))[:, P - 1 : -1]
    model.train(before)
    return float((logits.argmax(-1) == answers).all(-1).double().mean())


def train_in_a_table(logits, answers, old_logp, rewards, temperature, learning_rate, steps):
    P = len(logits)
    advantages = group_advantages(rewards.unflatten(0, (P, -1))).ravel()
    prompt = torch.arange(P).repeat_interleave(len(answers) // P)
    policy, ratios = logits, []
    for _ in range(steps):
        policy = policy.detach().requires_grad_()
        logp = token_logprobs(policy[prompt] / temperature, answers)
        ratios.append((logp - old_logp).exp().mean().item())
        loss, _ = policy_loss(logp, advantages, torch.ones_like(logp).bool(), old_logp)
        policy = policy - learning_rate * torch.autograd.grad(loss, policy)[0]
    return policy.detach(), ratios


def fault_by_sieve(log):
    """Test for faults in an order from those that break everything to one that only a second verifier shows."""
    series = {name: torch.tensor(values, dtype=torch.float64) for name, values in log.items()}
    if not torch.stack(list(series.values())).isfinite().all():
        return "not finite"
    if series["zero_std"].mean() == 1:
        return "no spread"
    if series["sampling_gap"].mean() > 1e-3:
        return "sampler differs"
    if series["advantage_mean"].abs().mean() > 1e-3:
        return "not centred"
    if series["kl"].max() == 0 and series["ratio_gap"].max() == 0 and series["entropy"].diff().abs().max() == 0:
        return "weights still"
    for metric, fault in (("ratio_gap", "old recomputed"), ("kl", "reference moves")):
        if series[metric].abs().sum() < 1e-5:
            return fault
    third = len(series["reward"]) // 3
    rising = {n: series[n][-third:].mean() > series[n][:third].mean() for n in ("reward", "accuracy")}
    return {(True, True): "none", (True, False): "hacked"}.get(tuple(map(bool, rising.values())), "wrong sign")


RIGHT = {
    "learn_to_stop": (stop_by_the_token_before,),
    "stay_near_reference": (stay_without_in_place,),
    "many_small_steps": (steps_in_float32, steps_onto_a_model),
    "held_out_accuracy": (accuracy_from_the_right_answers,),
    "train_on_batch": (train_in_a_table,),
    "name_fault": (fault_by_sieve,),
}
