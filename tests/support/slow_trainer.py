"""Compute a training step by literal loops: each row alone, no padding, no cache, AdamW and formulas written out.

Only random choices are taken from the trainer under test: the sampled tokens, and the rows of each minibatch.
"""

import copy

import torch

from grpo_lab.trainer import collecting, loop
from tests.support import oracles


class Recording:
    """Records the experience of each step of `trainer.train`, and the rows of its updates."""

    def __init__(self, monkeypatch):
        self.experiences, self.batches = [], []
        make_experience, row_indices_of_updates = collecting.make_experience, loop._row_indices_of_updates

        def note_experience(*arguments):
            self.experiences.append(make_experience(*arguments))
            self.batches.append([])
            return self.experiences[-1]

        def note_row_indices(*arguments):
            for row_indices in row_indices_of_updates(*arguments):
                self.batches[-1].append(row_indices.tolist())
                yield row_indices

        monkeypatch.setattr(collecting, "make_experience", note_experience)
        monkeypatch.setattr(loop, "_row_indices_of_updates", note_row_indices)


class SlowTrainer:
    """Makes the steps of a run by literal loops with its own AdamW, for comparison with the trainer."""

    def __init__(self, model, config):
        self.model, self.reference, self.config = model, copy.deepcopy(model), config
        self.parameters = list(model.parameters())
        self.first_moment = [torch.zeros_like(p) for p in self.parameters]
        self.second_moment = [torch.zeros_like(p) for p in self.parameters]
        self.updates = 0

    def step(self, step, experience, batches, lr):
        config = self.config
        every = config.ref_model_sync_steps
        if every is not None and step > 0 and step % every == 0:
            self.reference = copy.deepcopy(self.model)
        rollout, mask = experience.rollout, self.mask(experience.rollout)
        with torch.no_grad():
            old_logp, _ = self.logprobs(self.model, rollout)
            ref_logp, _ = self.logprobs(self.reference, rollout)
        for batch in batches:
            logp, entropy = self.logprobs(self.model, rollout, batch)
            tokens = sum(sum(row) for row in mask[batch].tolist())
            loss, _ = oracles.policy_loss(
                logp,
                experience.advantages[batch].double(),
                mask[batch],
                old_logp[batch],
                ref_logp[batch],
                num_items=tokens,
                **config.loss_arguments(),
            )
            bonus = oracles.aggregate(entropy, mask[batch], "dapo", num_items=tokens)
            self.update(loss - config.entropy_coef * bonus, lr)

    def mask(self, rollout):
        rows = []
        for row, truncated in zip(rollout.mask.tolist(), rollout.truncated.tolist(), strict=True):
            rows.append([is_token and not (truncated and self.config.mask_truncated_completions) for is_token in row])
        return torch.tensor(rows)

    def logprobs(self, model, rollout, rows=None):
        """Return tables of log-probabilities and entropies, with 0 after the end of each completion."""
        rows = range(len(rollout.mask)) if rows is None else rows
        computed = [self.row_logprobs(model, rollout, b) for b in rows]
        return oracles.table([logp for logp, _ in computed]), oracles.table([entropy for _, entropy in computed])

    def row_logprobs(self, model, rollout, b):
        p = b // self.config.num_generations
        prompt = [i for i, real in zip(*(x[p].tolist() for x in (rollout.prompt_ids, rollout.prompt_mask))) if real]  # noqa: B905
        completion = [i for i, real in zip(rollout.completion_ids[b].tolist(), rollout.mask[b].tolist()) if real]  # noqa: B905
        logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0]
        logp, entropy = [], []
        for t, token in enumerate(completion):
            log_pi = (logits[len(prompt) - 1 + t] / self.config.temperature).log_softmax(-1)
            logp.append(log_pi[token])
            entropy.append(-(log_pi.exp() * log_pi).sum())
        padding = [0.0] * (rollout.mask.shape[1] - len(completion))
        return logp + padding, entropy + padding

    def update(self, loss, lr):
        config = self.config
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, gradients, strict=True)]
        norm = sum((g**2).sum().item() for g in gradients) ** 0.5
        shrink = min(1.0, config.max_grad_norm / (norm + 1e-6))
        self.updates += 1
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters):
                gradient = gradients[i] * shrink
                b1, b2 = config.adam_beta1, config.adam_beta2
                self.first_moment[i] = b1 * self.first_moment[i] + (1 - b1) * gradient
                self.second_moment[i] = b2 * self.second_moment[i] + (1 - b2) * gradient**2
                mean = self.first_moment[i] / (1 - b1**self.updates)
                square = self.second_moment[i] / (1 - b2**self.updates)
                parameter -= lr * config.weight_decay * parameter
                parameter -= lr * mean / (square.sqrt() + 1e-8)
