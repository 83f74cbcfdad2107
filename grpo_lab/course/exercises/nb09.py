"""The exercises of notebook 09."""

import math
import random
from functools import cache
from statistics import fmean

import torch
from jaxtyping import BFloat16, Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from grpo_lab.advantages import group_advantages
from grpo_lab.course.exercise import Case, Draws, Exercise, drawn_case, f64, handwritten_case, wrong_lines
from grpo_lab.kl import kl_exact
from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import policy_loss

END = 1


def learn_to_stop(
    table: Float[Tensor, "V V"],
    completion_ids: Int[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    end: int,
    learning_rate: float = 1.0,
) -> Float[Tensor, "V V"]:
    """Make one REINFORCE update of a language model that predicts each token from the previous one alone.

    Args:
        table: The logits of the model: row i holds those of the token after token i. The token before a completion is
            token 0. The function does not change this tensor.
        completion_ids: The sampled completions. A completion includes its end token; after it, the row is padded with
            the end token.
        advantages: The advantage of each completion.
        end: The end token.
        learning_rate: Step size of gradient descent on the loss, which is a mean over all sampled tokens of the batch.

    Returns:
        The table after the update.
    """
    policy = table.clone().requires_grad_()
    starts = torch.zeros_like(completion_ids[:, :1])
    previous_ids = torch.cat([starts, completion_ids[:, :-1]], dim=1)  # B T
    logp = token_logprobs(policy[previous_ids], completion_ids)  # B T
    mask = completion_mask(completion_ids, end)  # B T
    gains = torch.where(mask, advantages[:, None] * logp, 0)
    loss = -gains.sum() / mask.sum()
    loss.backward()
    return table - learning_rate * policy.grad


def _completions(draws: Draws, B: int, T: int, V: int):
    ids = draws.integers(V, B, T)
    ids[:, 0] = 2  # no completion consists of the end token alone
    ids[0] = ids[0].clamp(min=2)  # the first completion has no end token
    has_ended = (ids == END).cumsum(-1) > 0
    return draws.normal(V, V), ids.masked_fill(has_ended, END), draws.normal(B), END


ZEROS = torch.zeros(3, 3, dtype=torch.float64)

LEARN_TO_STOP = Exercise(
    function=learn_to_stop,
    cases=(
        handwritten_case("a word and the end token", ZEROS, torch.tensor([[2, END]]), f64([1.0]), END),
        handwritten_case(
            "one ends, one does not", ZEROS, torch.tensor([[2, END, END], [2, 2, 2]]), f64([1.0, -1.0]), END, 0.5
        ),
        handwritten_case("ends at once", ZEROS, torch.tensor([[END, END], [2, END]]), f64([0.5, -2.0]), END),
        drawn_case("five completions of different lengths", lambda draws: _completions(draws, B=5, T=6, V=5)),
        drawn_case(
            "as many completions as tokens", lambda draws: _completions(draws, B=4, T=4, V=3), learning_rate=0.25
        ),
    ),
    planted=("eos-trimmed",),
    mistakes=(
        wrong_lines("eos-trimmed", {"completion_mask()": "mask = completion_ids != end"}),
        wrong_lines("padding-counted", {"completion_mask()": "mask = torch.ones_like(completion_ids).bool()"}),
        wrong_lines(
            "off-by-one", {"token_logprobs()": "logp = token_logprobs(policy[completion_ids], completion_ids)"}
        ),
    ),
)


def stay_near_reference(
    logits: Float[Tensor, "P V"], rewards: Float[Tensor, "P V"], beta: float, learning_rate: float, steps: int
) -> tuple[Float[Tensor, "P V"], list[float]]:
    """Train a policy on its expected reward with a KL penalty, where the reference is the policy before training.

    Expected reward and KL are computed exactly, so nothing is sampled.

    Args:
        logits: The logits before training, for V answers to each of P prompts. The function does not change this
            tensor.
        rewards: The reward of each answer.
        beta: Weight of the KL from the policy to the reference in the loss. KL and reward are means over the prompts.
        learning_rate: Step size of gradient descent.
        steps: Number of steps.

    Returns:
        The logits after training, and the KL before each step.
    """
    policy = logits.clone().requires_grad_()
    reference = logits.clone()  # [reference]
    kl_before_steps = []
    for _ in range(steps):
        reward = (policy.softmax(-1) * rewards).sum(-1).mean()
        kl = kl_exact(policy[None], reference[None]).mean()
        kl_before_steps.append(kl.item())
        gradient = torch.autograd.grad(beta * kl - reward, policy)[0]
        with torch.no_grad():
            policy -= learning_rate * gradient
    return policy.detach(), kl_before_steps


STAY_NEAR_REFERENCE = Exercise(
    function=stay_near_reference,
    demonstration="""\
start, rewards = torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.0]])
for beta in (0.0, 100.0):
    print(stay_near_reference(start, rewards, beta, 0.01, 500)[0])
""",
    cases=(
        handwritten_case("one prompt, two answers, two steps", f64([[0.0, 0.0]]), f64([[1.0, 0.0]]), 1.0, 1.0, 2),
        handwritten_case("a strong penalty, three steps", f64([[1.0, 0.0]]), f64([[0.0, 1.0]]), 4.0, 0.5, 3),
        handwritten_case("no penalty", f64([[1.0, 0.0, 0.5]]), f64([[0.0, 1.0, 2.0]]), 0.0, 0.5, 3),
        drawn_case("three prompts, five steps", lambda draws: (draws.normal(3, 4), draws.normal(3, 4), 0.7, 0.5, 5)),
    ),
    planted=("ref-not-frozen",),
    mistakes=(
        wrong_lines("ref-not-frozen", {"[reference]": "reference = policy.detach()"}),
        wrong_lines(
            "reference-one-behind",
            {"append()": "kl_before_steps.append(kl.item())\nreference = policy.detach().clone()"},
        ),
        wrong_lines("kl-reversed", {"kl_exact()": "kl = kl_exact(reference[None], policy[None]).mean()"}),
        wrong_lines("kl-sign", {"grad()": "gradient = torch.autograd.grad(-beta * kl - reward, policy)[0]"}),
    ),
)


def many_small_steps(
    weights: BFloat16[Tensor, " D"],
    inputs: Float[Tensor, "N D"],
    targets: Float[Tensor, " N"],
    learning_rate: float,
    steps: int,
) -> BFloat16[Tensor, " D"]:
    """Fit a linear model by gradient descent, with a forward pass in bfloat16 as large models have it to save memory.

    Args:
        weights: The weights before training. The function does not change this tensor.
        inputs: The inputs of N examples.
        targets: The target of each example. The loss is the mean squared error of the predictions.
        learning_rate: Step size of gradient descent.
        steps: Number of steps, each on all examples.

    Returns:
        The weights after training, in bfloat16.
    """
    master = weights.float().requires_grad_()
    for _ in range(steps):
        predicted = inputs.bfloat16() @ master.bfloat16()  # N
        loss = (predicted - targets).square().mean()
        gradient = torch.autograd.grad(loss, master)[0]
        with torch.no_grad():
            master -= learning_rate * gradient
    return master.detach().bfloat16()


def _far_targets(draws: Draws, N: int, D: int, learning_rate: float, steps: int):
    """Return weights from 1 to 2, and targets so far away that no gradient changes its sign."""
    weights = 1.25 + draws.normal(D).abs().clamp(max=0.5)
    inputs = torch.eye(D).repeat(N // D, 1)
    targets = inputs @ (weights.float() + 5 * draws.normal(D).sign().float())
    return weights.bfloat16(), inputs, targets, learning_rate, steps


ONE = torch.ones(1, dtype=torch.bfloat16)

MANY_SMALL_STEPS = Exercise(
    function=many_small_steps,
    demonstration="""\
for rate in (1e-4, 1e-2):  # one weight, from 1 towards 9
    print(many_small_steps(torch.ones(1).bfloat16(), torch.ones(1, 1), torch.tensor([9.0]), rate, 100))
""",
    cases=(
        handwritten_case("one weight, far too small", ONE, torch.ones(1, 1), torch.tensor([9.0]), 1e-4, 64),
        handwritten_case("one weight, far too large", 1.5 * ONE, torch.ones(1, 1), torch.tensor([-9.0]), 1e-5, 200),
        handwritten_case("one large step", ONE, torch.full((1, 1), 2.0), torch.tensor([9.0]), 0.05, 1),
        drawn_case(
            "three weights, many small steps",
            lambda draws: _far_targets(draws, N=6, D=3, learning_rate=1e-4, steps=150),
        ),
        drawn_case(
            "two weights, three large steps", lambda draws: _far_targets(draws, N=4, D=2, learning_rate=0.1, steps=3)
        ),
    ),
    tolerance=0.01,  # about the spacing of bfloat16 between 1 and 2, so that a forward pass in float32 is right, too
    planted=("pure-bf16-adamw",),
    mistakes=(
        wrong_lines("pure-bf16-adamw", {"requires_grad_()": "master = weights.clone().requires_grad_()"}),
        wrong_lines("float16-weights", {"requires_grad_()": "master = weights.half().requires_grad_()"}),
        wrong_lines("squares-added-up", {"mean()": "loss = (predicted - targets).square().sum()"}),
    ),
)


NUMBERS = 7


def held_out_accuracy(model: nn.Module, prompts: Int[Tensor, "N P"], answers: Int[Tensor, "N T"]) -> float:
    """Measure the accuracy of greedy answers to held-out prompts during training, and leave the training unaffected.

    Args:
        model: The model: it takes token ids (N, L) and returns logits (N, L, V). The logits at a position are those of
            the next token.
        prompts: The held-out prompts.
        answers: The right answers, all of T tokens. The model generates T tokens for each prompt, one by one.

    Returns:
        The share of prompts whose answer is right in every token.
    """
    was_training = model.training  # [mode]
    model.eval()
    ids = prompts  # N L, with L growing
    with torch.no_grad():
        for _ in range(answers.shape[1]):
            likeliest = model(ids)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, likeliest], dim=1)
    model.train(was_training)
    right = (ids[:, prompts.shape[1] :] == answers).all(-1)
    return right.float().mean().item()


class SumModel(nn.Module):
    """A model that predicts the sum of all tokens so far.

    In training mode it reads only the last token. A language model with gradient checkpointing does the same when it
    generates, because transformers drops its KV cache.
    """

    def forward(self, ids):
        seen = ids if self.training else ids.cumsum(-1)
        return one_hot(seen % NUMBERS, NUMBERS).double()


def after_measuring(accuracy, args, kwargs):
    """Observe the accuracy, and what the function must not change: modes, gradients, and random number generators."""
    modes = {"training" if module.training else "evaluation" for module in args[0].modules()}
    trained = [name for name, parameter in args[0].named_parameters() if parameter.requires_grad]
    return {
        "accuracy": accuracy,
        "mode of the model afterwards": ", ".join(sorted(modes)),
        "the parameters that take a gradient afterwards": ", ".join(trained),
        "whether gradients are computed afterwards": torch.is_grad_enabled(),
        "whether the gradients of the model are still there": all(p.grad is not None for p in args[0].parameters()),
        "the next random number": torch.rand(1).item(),
        "the next random number of Python": random.random(),
    }


def _sum_case(label: str, N: int, P: int, T: int, num_wrong: int, is_training: bool = True) -> Case:
    """Return a case with a `SumModel` and N answers, of which the first `num_wrong` have one wrong token.

    The wrong token is the first one in the first row, the second one in the second row, and so on.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        prompts = Draws(seed).integers(NUMBERS, N, P)
        prompt_sums = prompts.sum(-1, keepdim=True)
        # Each generated token is the sum of all tokens before it, so it doubles their sum.
        answers = prompt_sums * 2 ** torch.arange(T) % NUMBERS
        rows = torch.arange(num_wrong)
        answers[rows, rows % T] = (answers[rows, rows % T] + 1) % NUMBERS
        return (SumModel().train(is_training), prompts, answers), {}

    return Case(build, label)


def _dropout_case(label: str, is_nested: bool = False, is_frozen: bool = False, is_training: bool = True) -> Case:
    """Return a case with a model that has dropout, and 24 answers, of which six are wrong.

    Args:
        label: Label of the case.
        is_nested: Whether the dropout is in a module of a module of the model.
        is_frozen: Whether the embedding requires no gradient.
        is_training: Whether the model is in training mode before the call.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        draws, dropout = Draws(seed), nn.Dropout(0.7)
        block = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Sequential(dropout))) if is_nested else dropout
        model = draws.fill(nn.Sequential(nn.Embedding(NUMBERS, 8), block, nn.Linear(8, NUMBERS)))
        model[0].requires_grad_(not is_frozen)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)  # a call may come in the middle of gradient accumulation
        prompts = draws.integers(NUMBERS, 24, 2)
        answers = model.eval()(prompts)[:, -1:].argmax(-1)
        answers[:6] = (answers[:6] + 1) % NUMBERS
        return (model.train(is_training), prompts, answers), {}

    return Case(build, label)


HELD_OUT_ACCURACY = Exercise(
    function=held_out_accuracy,
    demonstration="""\
numbers = torch.arange(7)[:, None]
model = nn.Sequential(nn.Embedding.from_pretrained(torch.eye(7)), nn.Dropout(0.9))
print([held_out_accuracy(model, numbers, numbers) for _ in range(3)])
""",
    cases=(
        _sum_case("one token, two prompts", N=2, P=2, T=1, num_wrong=0),
        _sum_case("three tokens, one of four wrong", N=4, P=2, T=3, num_wrong=1),
        _sum_case("the model was not in training", N=4, P=3, T=2, num_wrong=3, is_training=False),
        _sum_case("half of ten wrong", N=10, P=4, T=2, num_wrong=5),
        _dropout_case("a model with dropout"),
        _dropout_case("dropout in a module of a module", is_nested=True),
        _dropout_case("an embedding that is frozen", is_frozen=True),
        _dropout_case(
            "a nested model that was not in training, and is frozen", is_nested=True, is_frozen=True, is_training=False
        ),
    ),
    observations=after_measuring,
    planted=("cache-dropped",),
    mistakes=(
        wrong_lines("cache-dropped", {"[mode]": "", "eval()": "", "train()": ""}),
        wrong_lines("left-in-evaluation", {"train()": ""}),
        wrong_lines("always-to-training", {"train()": "model.train()"}),
        wrong_lines("share-of-tokens", {"all()": "right = ids[:, prompts.shape[1]:] == answers"}),
        wrong_lines(
            "top-module-only", {"eval()": "model.training = False", "train()": "model.training = was_training"}
        ),
        wrong_lines("modules-left-in-evaluation", {"train()": "model.training = was_training"}),
        wrong_lines("seeded", {"eval()": "model.eval()\ntorch.manual_seed(0)"}),
        wrong_lines("gradients-off", {"eval()": "model.eval()\ntorch.set_grad_enabled(False)"}),
        wrong_lines("gradients-gone", {"eval()": "model.eval()\nmodel.zero_grad()"}),
        wrong_lines("left-frozen", {"eval()": "model.eval().requires_grad_(False)"}),
        wrong_lines("all-unfrozen", {"train()": "model.train(was_training).requires_grad_(True)"}),
    ),
)


def train_on_batch(
    logits: Float[Tensor, "P T V"],
    answers: Int[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    rewards: Float[Tensor, " B"],
    temperature: float,
    learning_rate: float,
    steps: int,
) -> tuple[Float[Tensor, "P T V"], list[float]]:
    """Make several GRPO updates on one batch, for a policy that samples all T tokens of an answer at once.

    Args:
        logits: The logits of the policy that sampled the answers, for P prompts. The function does not change this
            tensor.
        answers: The sampled answers, G for each prompt. Those of a prompt are adjacent rows, so B = P * G.
        old_logp: The log-probabilities of the sampled tokens, recorded during sampling.
        rewards: The reward of each answer.
        temperature: Temperature at which the answers were sampled.
        learning_rate: Step size of gradient descent.
        steps: Number of updates on this batch.

    Returns:
        The logits after the updates, and the mean importance ratio before each update.
    """
    P, G = len(logits), len(answers) // len(logits)
    advantages = group_advantages(rewards.view(P, G)).flatten()  # B
    mask = torch.ones_like(answers).bool()
    policy, ratios = logits.clone().requires_grad_(), []
    for _ in range(steps):
        logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers, temperature)  # B T
        loss, metrics = policy_loss(logp, advantages, mask, old_logp)
        ratios.append(metrics["ratio"].item())
        gradient = torch.autograd.grad(loss, policy)[0]
        with torch.no_grad():
            policy -= learning_rate * gradient
    return policy.detach(), ratios


def _drawn_batch(draws: Draws, P: int, G: int, T: int, V: int, temperature: float, learning_rate: float, steps: int):
    logits, answers = draws.normal(P, T, V), draws.integers(V, P * G, T)
    recorded = (logits / temperature).log_softmax(-1).repeat_interleave(G, dim=0)
    old_logp = recorded.gather(-1, answers[..., None])[..., 0]
    rewards = draws.normal(P * G) + 3 * draws.normal(P).repeat_interleave(G)  # the prompts differ in difficulty
    return logits, answers, old_logp, rewards, temperature, learning_rate, steps


def _two_prompt_batch(temperature: float, steps: int):
    """Return a batch with an easy prompt and a hard one, in which both answers have probability 1/2."""
    answers = torch.tensor([[0], [1], [0], [1]])
    old_logp = f64([[0.5]] * 4).log()
    return torch.zeros(2, 1, 2).double(), answers, old_logp, f64([5.0, 4.0, 1.0, 0.0]), temperature, 1.0, steps


TRAIN_ON_BATCH = Exercise(
    function=train_on_batch,
    demonstration="""\
logits, answers = torch.tensor([[[1.0, 0.0]]] * 2), torch.tensor([[0], [1], [1], [0]])  # answer 0 is the better one
old_logp = torch.tensor([[0.6225], [0.3775], [0.3775], [0.6225]]).log()  # recorded at temperature 2
for rewards in (torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([5.0, 4.0, 0.0, 1.0])):
    print(train_on_batch(logits, answers, old_logp, rewards, 2.0, 0.5, 4))
""",
    cases=(
        handwritten_case("two prompts, one update, temperature 1", *_two_prompt_batch(temperature=1.0, steps=1)),
        handwritten_case("two prompts, two updates, temperature 2", *_two_prompt_batch(temperature=2.0, steps=2)),
        drawn_case(
            "three prompts, temperature 1",
            lambda draws: _drawn_batch(draws, P=3, G=4, T=2, V=5, temperature=1.0, learning_rate=0.5, steps=2),
        ),
        drawn_case(
            "one prompt, temperature 0.7",
            lambda draws: _drawn_batch(draws, P=1, G=6, T=3, V=4, temperature=0.7, learning_rate=2.0, steps=3),
        ),
        drawn_case(
            "four prompts, temperature 1.5",
            lambda draws: _drawn_batch(draws, P=4, G=4, T=3, V=4, temperature=1.5, learning_rate=4.0, steps=4),
        ),
    ),
    planted=("group-mixed", "temperature-mismatch"),
    mistakes=(
        wrong_lines("group-mixed", {"view()": "advantages = group_advantages(rewards.view(G, P).T).T.flatten()"}),
        wrong_lines(
            "temperature-mismatch",
            {"token_logprobs()": "logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers)"},
        ),
        wrong_lines("old-recomputed", {"policy_loss()": "loss, metrics = policy_loss(logp, advantages, mask)"}),
        wrong_lines(
            "temperature-after-softmax",
            {"token_logprobs()": "logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers) / temperature"},
        ),
        wrong_lines(
            "prompts-tiled", {"token_logprobs()": "logp = token_logprobs(policy.repeat(G, 1, 1), answers, temperature)"}
        ),
    ),
)


FAULTS = (
    "not finite", "no spread", "sampler differs", "not centred", "weights still", "old recomputed", "reference moves",
    "wrong sign", "hacked", "none",
)  # fmt: skip


def name_fault(log: dict[str, list[float]]) -> str:
    """Name the fault of a run from its log.

    A run has at most one fault. It makes three updates on each batch, with a KL penalty; its rewards are 1 or 0. The
    possible results are "none" for a run without a fault, and:

    - "not finite": in some steps a gradient was NaN or infinite, and the step was skipped.
    - "no spread": all problems are too hard, so all completions get the same reward.
    - "sampler differs": the completions were sampled from another distribution than the trainer computes with.
    - "not centred": the mean of a group is not subtracted from its rewards.
    - "weights still": every update is so small that rounding undoes it.
    - "old recomputed": the old log-probabilities are recomputed at each update.
    - "reference moves": the reference is the policy itself.
    - "wrong sign": the loss has the wrong sign.
    - "hacked": the verifier also rewards a wrong answer, and the policy has learned to give it.

    Args:
        log: The values of each metric, one for each step, and at least 8. The metrics are:

            - "reward": mean reward of the completions.
            - "accuracy": share of right completions according to a second verifier.
            - "zero_std": share of groups in which all rewards are equal.
            - "advantage_mean": mean advantage of the completions.
            - "sampling_gap": mean absolute difference between the sampler's log-probabilities of the sampled tokens and
              the trainer's, before the first update.
            - "ratio_gap": mean absolute difference between the importance ratio and 1, at the last update.
            - "kl": KL from the policy to the reference after the step.
            - "entropy": entropy of the policy after the step.
            - "grad_norm": norm of the gradient at the last update.
            - "loss": loss at the last update.

    Returns:
        One of the names above.
    """
    gain = {name: fmean(values[-5:]) - fmean(values[:5]) for name, values in log.items()}
    shows = {"not finite": not all(math.isfinite(value) for values in log.values() for value in values)}
    shows["no spread"] = min(log["zero_std"]) > 0.9  # [spread]
    shows["sampler differs"] = fmean(log["sampling_gap"]) > 0.01  # [sampler]
    shows["not centred"] = fmean(log["advantage_mean"]) > 0.01  # [centred]
    shows["weights still"] = len(set(log["entropy"])) == 1  # [still]
    shows["old recomputed"] = fmean(log["ratio_gap"]) < 1e-4  # [old]
    shows["reference moves"] = fmean(log["kl"]) < 1e-4  # [reference]
    shows["wrong sign"] = gain["reward"] < 0  # [sign]
    shows["hacked"] = gain["accuracy"] < 0  # [hacked]
    return next((fault for fault, is_shown in shows.items() if is_shown), "none")


@cache
def log_of_run(fault: str, seed: int, steps: int = 24, P: int = 6, G: int = 8, updates: int = 3) -> dict:
    """Train a policy with this fault, and return its log as `name_fault` takes it.

    The policy chooses among five answers to each of P prompts. The first answer is right; the second one is the most
    likely before training. In a hacked run the second answer is always rewarded, and the right one in 30% of the cases.
    """
    draws = Draws(seed)
    policy = draws.normal(P, 5, scale=0.2)
    policy[:, 1] += 0.7
    if fault == "no spread":
        policy[:, 0] -= 40
    log: dict[str, list] = {}
    initial_policy, learning_rate = policy.clone(), -0.3 if fault == "wrong sign" else 1.0
    for step in range(steps):
        sampler_logp = (policy / 0.6 if fault == "sampler differs" else policy).log_softmax(-1)
        answers = torch.multinomial(sampler_logp.exp(), G, replacement=True, generator=draws.generator)
        is_right = answers == 0
        is_noticed = torch.rand(P, G, generator=draws.generator) < 0.3
        rewards = ((answers == 1) | (is_right & is_noticed) if fault == "hacked" else is_right).double()
        # The advantages and the KL below are written out, because in grading the library's functions that are
        # exercises have no body.
        standardised = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-4)
        advantages = rewards if fault == "not centred" else standardised
        old_logp = policy.log_softmax(-1).gather(-1, answers)
        metrics = {
            "reward": rewards.mean(),
            "accuracy": is_right.double().mean(),
            "zero_std": (rewards == rewards[:, :1]).all(-1).double().mean(),
            "advantage_mean": advantages.mean(),
            "sampling_gap": (sampler_logp.gather(-1, answers) - old_logp).abs().mean(),
        }
        is_skipped = fault == "not finite" and step % 7 == 5
        for _ in range(updates):
            trained_policy = policy.clone().requires_grad_()
            logp = trained_policy.log_softmax(-1).gather(-1, answers)
            reference = policy if fault == "reference moves" else initial_policy
            ref_logp = reference.log_softmax(-1).gather(-1, answers)
            ratio = (logp - (logp.detach() if fault == "old recomputed" else old_logp)).exp()
            surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            loss = (0.02 * ((ref_logp - logp).expm1() - ref_logp + logp) - surrogate).mean()
            gradient = torch.autograd.grad(loss, trained_policy)[0]
            if fault != "weights still" and not is_skipped:
                policy = policy - learning_rate * P * gradient
        reference = policy if fault == "reference moves" else initial_policy
        metrics |= {
            "ratio_gap": (ratio - 1).abs().mean(),
            "kl": (policy.softmax(-1) * (policy.log_softmax(-1) - reference.log_softmax(-1))).sum(-1).mean(),
            "entropy": -(policy.softmax(-1) * policy.log_softmax(-1)).sum(-1).mean(),
            "grad_norm": torch.tensor(math.nan) if is_skipped else gradient.norm(),
            "loss": loss,
        }
        for name, value in metrics.items():
            log.setdefault(name, []).append(round(value.item(), 6))
    return log


def _log_case(number: int) -> Case:
    """Return a case with the log of a run; each of the ten faults is drawn once for ten consecutive numbers."""

    def build(seed: int) -> tuple[tuple, dict]:
        order = torch.randperm(len(FAULTS), generator=Draws(seed + 1000 * (number // len(FAULTS))).generator)
        log = log_of_run(FAULTS[order[number % len(FAULTS)]], 100 * seed + number)
        return ({name: list(values) for name, values in log.items()},), {}

    return Case(build, "a run of 24 steps")


NAME_FAULT = Exercise(
    function=name_fault,
    demonstration="""\
flat, kl = [0.5] * 8, [0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.13, 0.15]
log = {"reward": kl, "accuracy": kl[::-1], "zero_std": flat, "advantage_mean": [0.0] * 8, "sampling_gap": [0.0] * 8}
log |= {"ratio_gap": kl, "kl": kl, "entropy": kl[::-1], "grad_norm": flat, "loss": kl}
print(name_fault(log))
""",
    cases=tuple(_log_case(number) for number in range(2 * len(FAULTS))),
    planted=("three-faults-known",),
    mistakes=(
        wrong_lines(
            "three-faults-known",
            {
                "[sampler]": "",
                "[centred]": "",
                "[still]": "",
                "[old]": "",
                "[reference]": "",
                "[hacked]": "",
            },
        ),
        wrong_lines("accuracy-unread", {"[hacked]": ""}),
        wrong_lines(
            "stillness-asked-last",
            {
                "[still]": "",
                "[hacked]": 'shows["hacked"] = gain["accuracy"] < 0\n'
                'shows["weights still"] = len(set(log["entropy"])) == 1',
            },
        ),
        wrong_lines("loss-believed", {"[sign]": 'shows["wrong sign"] = gain["loss"] > 0'}),
        wrong_lines("solved-is-no-fault", {"[spread]": 'shows["no spread"] = max(log["zero_std"]) > 0.9'}),
        wrong_lines("mean-ratio-trusted", {"[sampler]": ""}),
        wrong_lines("centre-unread", {"[centred]": ""}),
    ),
)
