"""The cell of each assignment that puts the student's right functions into a real run. Half a minute on a laptop."""

AT_WORK = (
    "Whatever you have got right by now takes the place of the library's function: `using(...)` puts your functions "
    "in, and takes them out."
)
MINE = """\
mine = finished()
print("right so far:", ", ".join(mine) or "none yet, so the library's functions do all of it")
"""

SORTING = """\
from grpo_lab.toys.sorting import make_prompts, train_sorting

{mine}
variants = {variants}
prompts, rounds, runs = make_prompts(numbers=8, length=4), fast_or_full(16, 80), {{}}
with using(**mine) as report:
    for name, settings in variants.items():
        runs[name] = train_sorting(prompts, seeds=range(4), rounds=rounds, eval_every=8, **settings)
print(report)

fig, ax = plt.subplots()
for name, run in runs.items():
    band(ax, run.rounds, run.history["reward"], name)
ax.set(xlabel="round", ylabel="reward on held-out prompts, at most 7")
ax.legend(loc="lower right")
finish(fig, caption="{caption}", alt="{alt}")"""

TINY = """\
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems
from grpo_lab.train import REWARD_WEIGHTS, REWARDS
from grpo_lab.trainer import GRPOConfig, train

{mine}
model, tokenizer = load_policy("tiny", device="cpu")
steps = fast_or_full(2, 15)
config = GRPOConfig(
    max_steps=steps, generation_batch_size=128, reward_weights=REWARD_WEIGHTS, disable_tqdm=True{settings}
)
with using(**mine) as report:
    history = train(model, tokenizer, addition_problems("train", 2000), REWARDS, config)
print(report)

fig, axes = plt.subplots(1, 2, figsize=(8, 3))
for ax, name, label in zip(axes, ("reward", "{metric}"), ("reward", "{label}")):
    ax.plot([row["step"] for row in history], [row.get(name, 0) for row in history])  # metrics may be empty
    ax.set(xlabel="step", ylabel=label)
finish(
    fig,
    caption="{caption}",
    alt="Two curves over 15 training steps of the tiny model: the reward, rising, and {label}.",
)"""

KL_WORLD = """\
from grpo_lab.kl import kl_exact
from grpo_lab.objective import policy_loss

{mine}
ref = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
paths, nothing = {{}}, torch.zeros(8, dtype=torch.float64)  # no reward: the KL is the whole loss
with using(**mine) as report:
    for kind in ("k1", "k2", "k3"):
        torch.manual_seed(0)
        logits, paths[kind] = -ref.repeat(8, 1), []  # the policies start where the reference hardly goes
        for _ in range(151):
            logits = logits.detach().requires_grad_()
            paths[kind].append(kl_exact(logits.detach()[None], ref.expand(1, 8, -1))[0])
            words = torch.multinomial(logits.detach().softmax(-1), 16, replacement=True)
            logp, ref_logp = (x.expand(8, -1).log_softmax(-1).gather(-1, words) for x in (logits, ref))
            loss, _ = policy_loss(
                logp, nothing, torch.ones_like(words).bool(), None, ref_logp, beta=1.0, kl_estimator=kind
            )
            logits = logits - 0.5 * torch.autograd.grad(8 * loss, logits)[0]
print(report)

fig, ax = plt.subplots()
for kind, path in paths.items():
    band(ax, range(151), torch.stack(path, dim=1), f"{{kind}} as the only loss")
ax.set(xlabel="step", ylabel="KL(policy, reference), nats")
ax.legend()
finish(
    fig,
    caption="Three estimators of one distance, each as a loss: two come near the reference, one wanders about.",
    alt="KL to the reference over 150 steps: k2 and k3 fall towards zero, k1 stays high with a wide band.",
)"""

STALE = """\
import copy
from collections import deque
from dataclasses import replace

from grpo_lab.toys import scale
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems
from grpo_lab.train import REWARD_WEIGHTS, REWARDS
from grpo_lab.trainer import GRPOConfig, all_logprobs, collect, update
from grpo_lab.trainer.run import Run

{mine}
model, tokenizer = load_policy("tiny", device="cpu")
sampler, versions, earned, bubbles = copy.deepcopy(model), deque(maxlen=17), [], []
config = GRPOConfig(
    max_steps=fast_or_full(2, 32), num_generations=16, generation_batch_size=64, reward_weights=REWARD_WEIGHTS,
    disable_tqdm=True,
)
with using(**mine) as report, Run(model, tokenizer, addition_problems("train", 2000), config, REWARDS) as run:
    for step in run.steps():
        versions.append(copy.deepcopy(model.state_dict()))
        sampler.load_state_dict(versions[0])
        batch, metrics = collect(sampler, tokenizer, run.rows_of_step(step), REWARDS, config)
        weights = scale.importance_weights(all_logprobs(model, batch, config), batch.rollout.logp, batch.mask)
        weights = scale.truncate_weights(weights)
        update(model, run.optimizer, replace(batch, advantages=batch.advantages[:, None] * weights), config, 2e-4)
        earned.append(metrics["reward"])
        bubbles.append(scale.straggler_bubble(batch.mask.sum(-1), 64))
print(report)

fig, ax = plt.subplots()
ax.plot(earned, label="reward of the sampler's answers")
ax.plot(bubbles, label="fraction of slots that wait")
ax.set(xlabel="update")
ax.legend()
finish(
    fig,
    caption="The sampler is sixteen updates behind: its reward rises that much later.",
    alt="Two curves over 32 updates: reward, flat for sixteen updates and then rising, and the waiting slots.",
)"""

REPAIRED = """\
from grpo_lab.course import stub_source
from grpo_lab.course.exercises import exercise

mine, given, shares = finished(), dict(globals()), {}
print("repaired so far:", ", ".join(mine) or "none yet")
exec(stub_source(exercise("learn_to_stop")), given)
updates = {"as it was given": given["learn_to_stop"]} | {"repaired": f for n, f in mine.items() if n == "learn_to_stop"}
for name, update in updates.items():
    torch.manual_seed(0)
    table, shares[name] = torch.zeros(6, 6), []
    for _ in range(fast_or_full(20, 150)):
        ids, last = [], torch.zeros(64, dtype=torch.long)
        for _ in range(20):  # token 1 ends an answer, and is its padding
            drawn = torch.multinomial(table[last].softmax(-1), 1)[:, 0]
            last = torch.where(last == 1, 1, drawn)
            ids.append(last)
        ids = torch.stack(ids, dim=1)
        right = ((ids[:, 0] == 2) & (ids[:, 1] == 1)).float()  # word 2, and nothing more
        shares[name].append(right.mean())
        table = update(table, ids, right, 1, 2.0)

fig, ax = plt.subplots()
for name, run in shares.items():
    ax.plot(run, label=name)
ax.set(xlabel="update", ylabel="share of right answers")
ax.legend()
finish(
    fig,
    caption="One word and the end is right: what is learnt without a gradient at the end token, and with it.",
    alt="Share of right answers over 150 updates: as it was given it stays below 0.2; repaired, it comes near 1.",
)"""


def _sorting(text: str, variants: str, caption: str, alt: str) -> tuple[str, str]:
    return f"{text} {AT_WORK}", SORTING.format(mine=MINE, variants=variants, caption=caption, alt=alt)


def _tiny(text: str, caption: str, metric: str, label: str, settings: str = "") -> tuple[str, str]:
    return f"{text} {AT_WORK}", TINY.format(mine=MINE, caption=caption, metric=metric, label=label, settings=settings)


# Of each assignment: what happens, for the student, and the code of the cell.
DEMONSTRATIONS = {
    "01": _sorting(
        "A small policy learns to sort with REINFORCE.",
        '{"raw rewards": {"weights": "raw", "loss": "naive", "num_iterations": 1}, '
        '"minus their mean": {"weights": "centred", "loss": "naive", "num_iterations": 1}}',
        "REINFORCE learns to sort from samples and rewards alone, and sooner when a mean is taken off the rewards.",
        "Reward over 80 rounds, two curves with bands: with the mean taken off it rises faster than with raw rewards.",
    ),
    "02": _sorting(
        "A small policy learns to sort.",
        '{"raw rewards": {"weights": "raw"}, "compared within groups": {"weights": "normalised"}}',
        "From the same number of samples: compared within their groups, rewards teach more than raw.",
        "Reward over 80 rounds, two curves with bands: compared within groups it rises well above raw rewards.",
    ),
    "03": _sorting(
        "The whole algorithm.",
        '{"one inner step": {"num_iterations": 1}, "four inner steps, clipped": {"num_iterations": 4}}',
        "The same samples, used for four clipped steps and not for one, take the policy further.",
        "Reward over 80 rounds, two curves with bands: with four inner steps it rises faster than with one.",
    ),
    "04": (
        "Each estimator alone is the loss here, and nothing else: which of them brings a policy back to its reference? "
        + AT_WORK,
        KL_WORLD.format(mine=MINE),
    ),
    "05": _tiny(
        "GRPO on a language model: the tiny Qwen2 that comes with the package, two updates a batch.",
        "Fifteen steps of GRPO: the reward rises, and with two updates a batch some ratios leave the clip range.",
        "clip_ratio/region_mean", "share of tokens clipped", ", num_iterations=2",
    ),
    "06": _tiny(
        "The tiny model trains on your reward, and finds out what it pays for.",
        "Fifteen steps of GRPO: the reward rises, whatever the policy does for it. The answers get longer.",
        "completions/mean_length", "mean length in tokens",
    ),
    "07": _tiny(
        "The whole loop on the tiny model: sample, reward, compare, log-probabilities, step.",
        "Fifteen steps of GRPO: thinking is never rewarded, and pays. Its share among the answers rises.",
        "rewards/think_rate/mean", "share of answers that think",
    ),
    "08": _tiny(
        "The tiny model stands in for the big one, in the same loop; with a card, notebook 08 trains the big one.",
        "Fifteen steps of GRPO with your functions: reward and length, as on the big model, only faster.",
        "completions/mean_length", "mean length in tokens",
    ),
    "09": (
        "An answer is right if it is one certain word, and then ends. The update as it was given, beside yours.",
        REPAIRED,
    ),
    "10": (
        "The tiny model learns from answers sixteen updates old, with the weights of your functions. Without any "
        f"weight it would not last: see notebook 10. {AT_WORK}",
        STALE.format(mine=MINE),
    ),
}  # fmt: skip
