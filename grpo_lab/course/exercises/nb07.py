"""The exercises of notebook 07."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpo_lab.advantages import group_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.course.exercise import INF, NAN, Case, Draws, Exercise, at_scale, drawn, extreme, f64, given
from grpo_lab.course.exercises.nb05 import the_loss
from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import microbatch_loss, policy_loss
from grpo_lab.rollout import read_sequences
from grpo_lab.trainer.collecting import compute_advantages
from grpo_lab.trainer.optim import step_if_finite

PAD, END, STOP = 0, 1, 2
WORDS = {3: "a", 4: "b", 5: "ab", 6: " ", 7: "<think>"}  # "a" and "b" in a row read as "ab", which is a token itself


class TinyTokenizer:
    """Eight tokens, for which encoding what was decoded does not give the same tokens back.

    Decodes as transformers' tokenizers do; encodes the longest piece first, as byte-pair encoding ends up doing.
    """

    eos_token_id = END
    eos_token, pad_token = "<end>", "<pad>"

    def __init__(self, pad_token_id: int = PAD):
        self.pad_token_id = pad_token_id

    def decode(self, token_ids, skip_special_tokens: bool = False, **ignored) -> str:
        ids = torch.as_tensor(token_ids).flatten().tolist()
        return "".join(WORDS.get(i) or ("" if skip_special_tokens else f"<{i}>") for i in ids)

    def batch_decode(self, sequences, **settings) -> list[str]:
        return [self.decode(row, **settings) for row in sequences]

    def encode(self, text: str, **ignored) -> list[int]:
        ids, pieces = [], sorted(WORDS.items(), key=lambda item: -len(item[1]))
        while text:
            match = next(((i, word) for i, word in pieces if text.startswith(word)), None)
            if match:
                ids.append(match[0])
            text = text[len(match[1]) :] if match else text[1:]
        return ids


def retokenised(sequences, prompt_length, eos_token_ids, tokenizer):
    ids, mask, truncated, texts = read_sequences(sequences, prompt_length, eos_token_ids, tokenizer)
    again = torch.full_like(ids, tokenizer.pad_token_id)
    for row, text in zip(again, texts, strict=True):
        new = tokenizer.encode(text, add_special_tokens=False)
        row[: len(new)] = torch.tensor(new)
    return again, mask, truncated, texts


def generated(label, rows, prompt_length, ends=(END,), pad=PAD):
    return given(label, torch.tensor(rows), prompt_length, list(ends), TinyTokenizer(pad))


def _many(draws: Draws) -> tuple:
    """Sequences padded on the left with the end token, as by a tokenizer without padding token; cut off, or ended.

    Some prompts have an end token in them, too, as the turns of a conversation do.
    """
    rows = draws.integers(5, 6, 9) + 3
    rows[::2, :2] = END
    rows[1::2, 3] = STOP
    for row, length in enumerate(draws.integers(4, 4).tolist()):
        rows[row, 4 + length :] = END
    return rows, 4, [END, STOP], TinyTokenizer(END)


def _large(draws: Draws) -> tuple:
    """Sequences of 300 tokens, padding sampled as a word among them; two rows are cut off, the others end somewhere."""
    rows = torch.tensor([PAD, 3, 4, 5, 6, 7])[draws.integers(6, 7, 337)]
    rows[::2, 5], rows[1::3, 36] = END, STOP
    for row, length in enumerate(draws.integers(300, 5).tolist()):
        rows[row, 37 + length] = (END, STOP)[row % 2]
        rows[row, 37 + length + 1 :: 2] = (STOP, END)[row % 2]
    return rows, 37, [STOP, END], TinyTokenizer()


READ_SEQUENCES = Exercise(
    function=read_sequences,
    cases=(
        generated("one prompt token, then 'a', 'b' and the end", [[6, 3, 4, END]], 1),
        generated("the policy sampled 'ab' in one token", [[6, 5, END, PAD]], 1),
        generated("cut off", [[6, 3, 4, 5]], 1),
        generated(
            "one ended, one cut off, one ended on the last token", [[6, 3, END, PAD], [6, 4, 3, 3], [6, 3, 3, END]], 1
        ),
        generated("something stands behind the end", [[6, 3, END, 4, 4]], 1),
        generated("padding is the end token", [[END, 6, 3, END, END], [6, 6, 4, 4, 4]], 2, pad=END),
        generated("two kinds of end", [[6, 3, STOP, PAD], [6, 4, 4, END]], 1, ends=(END, STOP)),
        generated("padding sampled as a word", [[6, 3, PAD, 4, END]], 1),
        generated("ends at once", [[6, END, PAD], [6, 3, END]], 1),
        generated("the prompt is an end token, and the completion is cut off", [[END, 3, 4, 5]], 1),
        generated("an end token in the prompt, a long completion", [[END, 6, 3, 4, 5], [6, END, 4, 4, END]], 2),
        generated(
            "the prompt ends its turns", [[3, STOP, 4, STOP, 5, 6], [3, END, 4, STOP, 5, END]], 4, ends=(END, STOP)
        ),
        generated(
            "another token than the tokenizer's ends it", [[6, 3, END, 4, STOP], [6, END, PAD, 3, 4]], 1, ends=(STOP,)
        ),
        generated("a word ends the completion", [[6, 3, 4, PAD], [6, 4, END, 3], [6, 3, 3, 3]], 1, ends=(END, 4)),
        drawn("many rows", _many),
        at_scale("300 tokens", _large),
    ),
    mistakes={
        "retokenised": retokenised,
        "eos-trimmed": {
            "completion_mask()": "mask = completion_mask(completion_ids, eos_token_ids) & ~torch.isin("
            "completion_ids, torch.tensor(eos_token_ids))"
        },
        "prompt-kept": {
            "completion_mask()": "completion_ids = sequences\nmask = completion_mask(completion_ids, eos_token_ids)"
        },
        "one-end-only": {
            "completion_mask()": "eos_token_ids = [tokenizer.eos_token_id]\n"
            "mask = completion_mask(completion_ids, eos_token_ids)"
        },
        "first-of-the-ends": {
            "completion_mask()": "eos_token_ids = eos_token_ids[:1]\n"
            "mask = completion_mask(completion_ids, eos_token_ids)"
        },
        "truncated-turned-round": {
            "isin()": "truncated = torch.isin(completion_ids, torch.tensor(eos_token_ids)).any(-1)"
        },
        "last-token-decides": {"isin()": "truncated = ~torch.isin(completion_ids[:, -1], torch.tensor(eos_token_ids))"},
        "special-tokens-shown": {
            "decode()": "texts = [tokenizer.decode(row[in_completion]) for row, in_completion in rows]"
        },
        "end-in-the-prompt": {
            "isin()": "truncated = ~torch.isin(sequences, torch.tensor(eos_token_ids, device=mask.device)).any(-1)"
        },
        "prompt-ends-the-mask": {
            "completion_mask()": "mask = completion_mask(sequences, eos_token_ids)[:, prompt_length:]"
        },
        "full-is-truncated": {"isin()": "truncated = mask.all(-1)"},
        "padding-read": {"decode()": "texts = [tokenizer.decode(row, skip_special_tokens=True) for row, _ in rows]"},
        "cut-off-by-one-end": {"isin()": "truncated = (completion_ids != eos_token_ids[0]).all(-1)"},
    },
)


EPS = 1e-4
# Their means, and what is left without them, are exact in float32; the squares are not.
NEAR = [10001.0, 10000.0, 10000.0, 10002.0, 10000.0, NAN, 10004.0, NAN]


def mixed(rewards, config):
    across = rewards.view(config.num_generations, -1).T
    return compute_advantages(across.flatten(), config).view_as(across).T.flatten()


def nan_spreads(rewards, config):
    by_group = rewards.view(-1, config.num_generations)
    centred = by_group - by_group.mean(-1, keepdim=True)
    spread = {"group": by_group.std(-1, keepdim=True) + EPS, "batch": rewards.std() + EPS, "none": 1.0}
    return (centred / spread[config.scale_rewards]).flatten()


def over_prompts(rewards, config):
    by_group = rewards.view(-1, config.num_generations)
    centred = by_group - by_group.nanmean(0, keepdim=True)
    spread = {"group": by_group.std(0, keepdim=True) + EPS, "batch": rewards.std() + EPS, "none": 1.0}
    return (centred / spread[config.scale_rewards]).flatten()


def batch(rewards, G, scale="group", dtype=torch.float64):
    """The rewards, and the settings of a run that has so many."""
    settings = GRPOConfig(generation_batch_size=len(rewards), num_generations=G, scale_rewards=scale)
    return torch.as_tensor(rewards, dtype=dtype), settings


def _drawn(d, P, G, scale="group", missing=0):
    rewards = d.normal(P * G) + d.normal(P).repeat_interleave(G)
    rewards[torch.randperm(P * G, generator=d.generator)[:missing]] = NAN
    return batch(rewards, G, scale)


def alone_keeps_its_reward(rewards, config):
    advantages = compute_advantages(rewards, config).view(-1, config.num_generations)
    grouped = rewards.view(-1, config.num_generations)
    is_alone = ~grouped.isnan() & ((~grouped.isnan()).sum(-1, keepdim=True) == 1)
    return torch.where(is_alone, grouped, advantages).flatten()


COMPUTE_ADVANTAGES = Exercise(
    function=compute_advantages,
    cases=(
        given("one prompt: right and wrong, centred only", *batch([1.0, 0.0], 2, "none")),
        given("two prompts, three completions each", *batch([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], 3)),
        given("an easy prompt and a hard one", *batch([1.0, 1.0, 0.0, 0.0], 2)),
        given("no reward applies to one of three", *batch([1.0, NAN, 0.0], 3)),
        given("one reward alone", *batch([NAN, 2.0, 1.0, 0.0], 2)),
        given("no reward at all", *batch([NAN, NAN, 1.0, 3.0], 2, "none")),
        given("two prompts of unlike spread, one spread for all", *batch([1.0, 0.0, 10.0, 0.0], 2, "batch")),
        drawn("many prompts", lambda d: _drawn(d, 3, 4)),
        drawn("one spread for all", lambda d: _drawn(d, 3, 5, "batch")),
        drawn("one spread for all, some NaN", lambda d: _drawn(d, 3, 5, "batch", missing=4)),
        extreme("rewards that differ by 1e-6", *batch([0.0, 1e-6, 3e-6, 0.0, 0.0, 2e-6], 3)),
        extreme("float32, rewards near 10000", *batch(NEAR, 4, dtype=torch.float32)),
        extreme("equal rewards, and a prompt without any", *batch([0.1, 0.1, 0.1, NAN, NAN, NAN, 7.0, NAN, 7.0], 3)),
        extreme("one reward in all, one spread for all", *batch([NAN, 2.0, NAN, NAN], 2, "batch")),
        extreme("two rewards in all, one spread for all", *batch([1.0, 0.0, NAN, NAN], 2, "batch")),
        at_scale("15 prompts, one spread for all, many NaN", lambda d: _drawn(d, 15, 7, "batch", missing=40)),
    ),
    mistakes={
        "group-mixed": mixed,
        "one-group": {"rearrange()": 'grouped_rewards = rearrange(rewards, "(P G) -> P G", P=1)'},
        "nan-as-zero": {
            "rearrange()": "grouped_rewards = rearrange("
            "(rewards := rewards.nan_to_num(0.0)), '(P G) -> P G', G=config.num_generations)"
        },
        "nan-spreads": nan_spreads,
        "over-prompts": over_prompts,
        "no-centre": lambda rewards, config: rewards.nan_to_num(0.0),
        "nan-stays": lambda rewards, config: torch.where(rewards.isnan(), rewards, compute_advantages(rewards, config)),
        "alone-keeps-its-reward": alone_keeps_its_reward,
    },
)


def _fixed(label, loss_type, keep, rows, num_items, **settings):
    """Advantages of 1 and no old policy: each token under the mask adds -1."""

    def build(seed: int) -> tuple[tuple, dict]:
        mask = torch.tensor(keep)
        logp = f64([[-1.0] * mask.shape[1]] * len(mask))
        advantages = torch.ones(len(mask), dtype=torch.float64)
        return (logp, advantages, mask, rows, num_items), {"loss_type": loss_type, **settings}

    return Case(build, label)


def _part(label, loss_type, B, T, dtype=torch.float64, **settings):
    def build(seed: int) -> tuple[tuple, dict]:
        draws = Draws(seed)
        logp, mask = (draws.logp(B, T) - 0.1).to(dtype), draws.ragged(B, T)
        moved = {name: logp + draws.normal(B, T, scale=0.3).to(dtype) for name in ("old_logp", "ref_logp")}
        arguments = (logp, draws.normal(B).to(dtype), mask, B + 5, mask.sum() + 17)
        return arguments, {"loss_type": loss_type, "beta": 0.1, **moved, **settings}

    return Case(build, label)


ONE, TWO, THREE = [True, False, False], [True, True, False], [True, True, True]

MICROBATCH_LOSS = Exercise(
    function=microbatch_loss,
    cases=(
        _fixed("grpo: one row of four", "grpo", [THREE], 4, 9),
        _fixed("grpo: three rows of four", "grpo", [ONE, TWO, THREE], 4, 9),
        _fixed("dapo: one row, 2 tokens of 8", "dapo", [TWO], 4, 8),
        _fixed("dr_grpo: two rows of six", "dr_grpo", [TWO, THREE], 6, 12, max_completion_length=10),
        _fixed("bnpo: two rows of four, all full", "bnpo", [THREE, THREE], 4, 12),
        _part("grpo", "grpo", 3, 4),
        _part("cispo", "cispo", 3, 4, epsilon_high=2.0),
        _part("luspo, one ratio a sequence", "luspo", 3, 4, importance_sampling_level="sequence"),
        _part("grpo, another clip range", "grpo", 3, 4, epsilon=0.05, epsilon_high=0.5, delta=1.6),
        _part("vespo, one row of many", "vespo", 1, 4, beta=0.7),
        _fixed("luspo: two rows of four, one without tokens", "luspo", [TWO, [False] * 3], 4, 7),
        replace(_fixed("grpo: no tokens", "grpo", [[False] * 3] * 2, 5, 7), tests="stability"),
        replace(_part("grpo, 300 tokens", "grpo", 5, 300), tests="stability"),
    ),
    gradient_of=("logp",),
    observe=the_loss,
    mistakes={
        "microbatch-mean": {"5.16": "loss = loss"},
        "microbatch-token-mean": {
            "policy_loss()": "loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, "
            "num_items=mask.sum(), **settings)"
        },
        "always-weighted": {"5.15": "share = len(mask) / rows"},
        "weighted-by-tokens": {"5.15": "share = 1.0 if loss_type in LOSSES_BY_TOKENS else mask.sum() / num_items"},
        "share-turned-round": {"5.15": "share = 1.0 if loss_type in LOSSES_BY_TOKENS else rows / len(mask)"},
    },
)


def after(result, args, kwargs):
    """Observe norm, result and moments; the parameters themselves are compared as arguments that changed."""
    optimizer, parameters, *_ = args
    norm, stepped = result if isinstance(result, tuple) and len(result) == 2 else (result, "not returned")
    if isinstance(norm, float) and not math.isfinite(norm):
        norm = INF  # NaN and infinity say the same
    remains = any(bool((p.grad != 0).any()) for p in parameters if p.grad is not None)
    observed = {
        "the norm": norm,
        "the second result (was the update made?)": stepped,
        "what is left of the gradients": "something" if remains else "nothing",
    }
    for number, memory in optimizer.state_dict()["state"].items():
        observed |= {f"{name} of parameter {number}": x for name, x in memory.items() if isinstance(x, torch.Tensor)}
    return observed


def _case(label, gradients, loss=0.5, max_grad_norm=1.0, kind="sgd", dtype=torch.float64):
    """A case in which Adam has made a step already: its moments would move the weights even without a gradient."""

    def build(seed: int) -> tuple[tuple, dict]:
        rows = gradients(Draws(seed)) if callable(gradients) else [torch.tensor(g).to(dtype) for g in gradients]
        parameters = [nn.Parameter(torch.ones_like(row)) for row in rows]
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[kind]
        optimizer = make(parameters, lr=0.5)
        if kind == "adam":
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.25)
            optimizer.step()
        for parameter, row in zip(parameters, rows, strict=True):
            parameter.grad = row.clone()
        return (optimizer, parameters, loss, max_grad_norm), {}

    return Case(build, label)


STEP_IF_FINITE = Exercise(
    function=step_if_finite,
    cases=(
        _case("a gradient of norm 1/2", [[0.3, -0.4]]),
        _case("a gradient of norm 5, clipped to 1", [[3.0, 4.0]]),
        _case("a gradient of norm 5, and room for 100", [[3.0, 4.0]], max_grad_norm=100.0),
        _case("a gradient of norm 1/2, clipped to 1/4", [[0.3, -0.4]], max_grad_norm=0.25),
        _case("a loss below 0", [[0.3, -0.4]], loss=-0.3),
        _case("a gradient of norm 5e6", [[3e6, 4e6]]),
        _case("a gradient of norm 1e-9", [[6e-10, 8e-10]]),
        _case("a loss of 1e7", [[0.3, -0.4]], loss=1e7),
        _case("a loss of -1e7 and a large gradient, with Adam", [[3e9], [4e9]], loss=-1e7, kind="adam"),
        _case("a gradient that is NaN", [[NAN, NAN]]),
        _case("a loss that is NaN", [[0.3, -0.4]], loss=NAN),
        _case("a gradient that is infinite", [[INF, -0.4]]),
        _case("a loss that is infinite", [[0.3, -0.4]], loss=INF),
        _case("a loss that is NaN, with Adam", [[0.3], [0.2]], loss=NAN, kind="adam"),
        _case("two parameters", lambda d: [d.normal(3), d.normal(2)], max_grad_norm=0.7),
        _case("two parameters, with Adam", lambda d: [d.normal(2, 3), d.normal(4)], max_grad_norm=0.3, kind="adam"),
        _case("plus and minus infinity, with Adam", [[0.3], [INF, -INF], [0.1]], kind="adam"),
    ),
    observe=after,
    mistakes={
        "nonfinite-step": {"isfinite()": "stepped = True"},
        "loss-only": {"isfinite()": "stepped = math.isfinite(loss)"},
        "gradient-only": {"isfinite()": "stepped = math.isfinite(norm)"},
        "gradients-kept": {"zero_grad()": "if stepped:\n    optimizer.zero_grad()"},
        "negative-loss-skipped": {"isfinite()": "stepped = math.isfinite(norm) and 0 <= loss < math.inf"},
        "large-norm-skipped": {"isfinite()": "stepped = norm < 1e4 and abs(loss) < 1e4"},
        "unclipped": {"clip_gradients()": "norm = clip_gradients(parameters, math.inf)"},
        "not-cleared": {"zero_grad()": ""},
    },
)


def train_by_grpo(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    prompts: Int[Tensor, "N L"],
    sample: Callable,
    reward: Callable,
    end: int,
    steps: int,
    num_generations: int = 4,
    num_iterations: int = 2,
    epsilon: float = 0.2,
) -> list[float]:
    """Whole steps of GRPO on a language model: sample, reward, compare, loss, update. No KL term, no reference.

    Args:
        model: takes token ids (B, L) and returns logits (B, L, V), those at a place for the token behind it.
        optimizer: of its parameters. What their gradients are before the call does not matter.
        prompts: of one length. All of them are used in every step.
        sample: takes the model and prompts (B, L), and returns completions (B, T): one for each row, drawn at
            temperature 1, up to and with the end token, then padding, which is the end token again.
        reward: takes prompts (B, L) and completions (B, T), row by row, and returns rewards (B,).
        end: the end token.
        steps: how often completions are sampled.
        num_generations: completions of each prompt, compared with each other, Eq. (2.7).
        num_iterations: updates on the completions of a step.
        epsilon: of the clip. The loss is that of the paper: `policy_loss` of notebook 05, as it is by default.

    Returns:
        The mean reward of each step.
    """
    rows, earned = prompts.repeat_interleave(num_generations, dim=0), []  # B L
    for _ in range(steps):
        completion_ids = sample(model, rows)  # B T
        rewards = reward(rows, completion_ids)  # B
        advantages = group_advantages(rewards.view(-1, num_generations)).flatten()  # B
        mask = completion_mask(completion_ids, end)  # B T
        ids = torch.cat([rows, completion_ids], dim=1)
        old_logp = None
        for _ in range(num_iterations):  # [updates]
            logits = model(ids)[:, prompts.shape[1] - 1 : -1]
            logp = token_logprobs(logits, completion_ids)  # B T
            old_logp = logp.detach() if old_logp is None else old_logp  # [old]
            loss, _ = policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        earned.append(rewards.mean().item())
    return earned


LAST = 1  # the end token


class Copying:
    """A world of words, and an answer to each: right is the answer to the last word, and then the end.

    The next token depends on the one before. What is sampled depends on the weights, the prompt and how often it was
    asked, and not on how the rows are cut; so whoever does what is asked sees the same completions.
    """

    def __init__(self, seed: int, words: int, length: int):
        self.words, self.length, self.times_sampled = words, length, Counter()
        self.model = Draws(seed).fill(nn.Embedding(2 + 2 * words, 2 + 2 * words))
        self.seed = seed
        self.model.weight.data *= 0.3

    @torch.no_grad()
    def sample(self, model, rows):
        noise = torch.stack([self._gumbel_noise(tuple(row)) for row in rows.tolist()])  # B T V
        ids, ended = rows, torch.zeros(len(rows), dtype=torch.bool)
        for t in range(self.length):
            token = (model(ids)[:, -1] + noise[:, t]).argmax(-1).masked_fill(ended, LAST)
            ids, ended = torch.cat([ids, token[:, None]], dim=1), ended | (token == LAST)
        return ids[:, rows.shape[1] :]

    def _gumbel_noise(self, prompt: tuple):
        """Gumbel noise: the largest of logits with it is a sample."""
        self.times_sampled[prompt] += 1
        draws = Draws(hash((self.seed, prompt, self.times_sampled[prompt])) % 2**31)
        uniform = torch.rand(self.length, len(self.model.weight), generator=draws.generator, dtype=torch.float64)
        return -(-uniform.clamp(min=1e-12).log()).log()

    def reward(self, rows, completion_ids):
        first = completion_ids[:, 0] == rows[:, -1] + self.words
        right = first & (completion_ids[:, 1] == LAST)
        return (0.5 * first + 0.5 * right).double() + 0.1 * (completion_ids != LAST).double().mean(-1)

    def held_out(self, model) -> float:
        """The accuracy of the likeliest completion, behind prompts that nobody trained on."""
        words = 2 + torch.arange(self.words)
        first = model(words).argmax(-1)
        return float(((first == words + self.words) & (model(first).argmax(-1) == LAST)).double().mean())


def after_training(earned, args, kwargs):
    model, world, steps = args[0], args[3].__self__, args[6]
    if steps > 3:
        return {"whether most held-out prompts are answered right": world.held_out(model) > 0.6}
    return {"the mean rewards": earned, "the weights after the updates": model.weight}


def _grpo(
    label: str,
    steps: int,
    prompts: int = 3,
    words: int = 3,
    length: int = 4,
    rate=5.0,
    initial_gradient=0.0,
    seed_offset=0,
    **settings,
):
    """A case of whole steps. initial_gradient: the one that is there before the call."""

    def build(seed: int) -> tuple[tuple, dict]:
        world, draws = Copying(seed + seed_offset, words, length), Draws(seed + seed_offset + 1)
        pairs = torch.cartesian_prod(torch.arange(words), torch.arange(words))
        chosen = 2 + pairs[torch.randperm(len(pairs), generator=draws.generator)[:prompts]]
        world.model.weight.grad = torch.full_like(world.model.weight, initial_gradient)
        kind = torch.optim.SGD if steps <= 3 else torch.optim.Adam
        optimizer = kind(world.model.parameters(), lr=rate)
        return (world.model, optimizer, chosen, world.sample, world.reward, LAST), {"steps": steps, **settings}

    return Case(build, label)


TRAIN_BY_GRPO = Exercise(
    function=train_by_grpo,
    cases=(
        _grpo("one step, one update", 1, num_iterations=1),
        _grpo("one step, three updates, a narrow clip", 1, num_iterations=3, epsilon=0.05),
        _grpo("as many prompts as completions", 1, prompts=4),
        _grpo("a gradient was left over", 1, initial_gradient=1.0),
        _grpo("two steps", 2, prompts=2, length=6, num_generations=6),
        *(
            _grpo(f"a whole training, number {n}", 30, 7, length=2, rate=0.2, seed_offset=n, num_generations=16)
            for n in (1, 2, 3)
        ),
    ),
    observe=after_training,
    tolerance=1e-5,
    mistakes={
        "ascends": {"backward()": "(-loss).backward()"},
        "no-centre": {"group_advantages()": "advantages = rewards"},
        "one-group": {"group_advantages()": "advantages = group_advantages(rewards[None]).flatten()"},
        "group-mixed": {"repeat_interleave()": "rows, earned = prompts.repeat(num_generations, 1), []"},
        "eos-trimmed": {"completion_mask()": "mask = completion_ids != end"},
        "padding-counted": {"completion_mask()": "mask = torch.ones_like(completion_ids, dtype=torch.bool)"},
        "off-by-one": {"model()": "logits = model(ids)[:, prompts.shape[1] :]"},
        "old-not-frozen": {"[old]": "old_logp = logp.detach()"},
        "gradients-kept": {"zero_grad()": ""},
        "one-update": {"[updates]": "for _ in range(1):"},
        "gradient-of-before": {"zero_grad()": "", "step()": "optimizer.step()\noptimizer.zero_grad()"},
    },
)


def dynamic_sampling(
    sample: Callable, prompts: Int[Tensor, " N"], size: int
) -> tuple[Int[Tensor, " P"], Float[Tensor, "P G"], float]:
    """Fill a batch with the groups that teach something: those whose rewards are not all equal.

    A round samples the next `size` prompts, in their order. Rounds follow until `size` groups teach something; where
    the prompts run out, the last round is a short one, and the batch stays smaller, or empty. A reward of NaN says that
    none applies: what counts are the others of its group, and one reward alone teaches nothing.

    Args:
        sample: takes prompts (M,) and returns the rewards (M, G) of new completions.
        prompts: in the order in which they are sampled, none of them twice.
        size: groups of a full batch, and prompts of a round.

    Returns:
        The prompts of the first `size` groups that teach something, in their order; their rewards; and the mean of
        *all* rewards that were sampled, NaN left out: that of the kept groups says nothing about the policy.
    """
    rounds: list[Tensor] = []
    teaching: list[Tensor] = []
    for chunk in prompts.split(size):  # the prompts of a round
        rewards = sample(chunk)  # M G
        low, high = rewards.nan_to_num(INF).amin(-1), rewards.nan_to_num(-INF).amax(-1)
        rounds.append(rewards)
        teaching.append(low < high)
        if torch.cat(teaching).sum() >= size:  # [round]
            break
    rewards, informative = torch.cat(rounds), torch.cat(teaching).nonzero()[:size, 0]
    return prompts[informative], rewards[informative], rewards.nanmean().item()


class Tasks:
    """Prompts of unlike difficulty, which remember how often they were sampled."""

    def __init__(self, draws: Draws, hardness: list[float], G: int, pays: tuple, missing: float, dtype: torch.dtype):
        self.chances = torch.tensor(hardness)[draws.integers(len(hardness), 200)]
        self.draws, self.G, self.pays, self.missing, self.dtype = draws, G, pays, missing, dtype
        self.sampled: list[int] = []

    def sample(self, prompts):
        self.sampled += prompts.tolist()
        uniform = torch.rand(len(prompts), self.G, 2, generator=self.draws.generator)
        right = uniform[..., 0] < self.chances[prompts, None]
        rewards = torch.where(right, *(torch.tensor(pay, dtype=self.dtype) for pay in self.pays))
        return rewards.masked_fill(uniform[..., 1] < self.missing, NAN)


def after_sampling(result, args, kwargs):
    prompts, rewards, mean = result
    return {
        "the prompts of the batch": prompts,
        "the rewards of the batch": rewards,
        "the mean reward": mean,
        "the prompts that were sampled": args[0].__self__.sampled,
    }


def _tasks(label, N, size, hardness=(0.0, 0.5, 1.0), G=4, pays=(1.0, 0.0), missing=0.0, dtype=torch.float64):
    """N prompts in a drawn order, of which some are always right, some never."""

    def build(seed: int) -> tuple[tuple, dict]:
        draws = Draws(seed)
        prompts = torch.randperm(200, generator=draws.generator)[:N]
        return (Tasks(draws, list(hardness), G, pays, missing, dtype).sample, prompts, size), {}

    return Case(build, label)


DYNAMIC_SAMPLING = Exercise(
    function=dynamic_sampling,
    cases=(
        _tasks("every group teaches", 12, 3, hardness=(0.5,), G=16),
        _tasks("a third is too easy, a third too hard", 60, 4),
        _tasks("hard prompts: nearly all groups are wrong", 80, 3, hardness=(0.0, 0.1)),
        _tasks("easy prompts: nearly all groups are right", 80, 3, hardness=(0.9, 1.0)),
        _tasks("the prompts run out", 20, 12, hardness=(0.0, 0.0, 0.5)),
        _tasks("the last round brings more than is needed", 90, 12, hardness=(0.0, 0.5, 0.5, 0.5), G=6),
        _tasks("two rounds and a half", 30, 12, hardness=(0.05, 0.5), G=8),
        _tasks("as many completions as prompts of a batch", 60, 5, G=5),
        _tasks("rewards of 0.7 and -0.1", 60, 4, pays=(0.7, -0.1), G=6),
        _tasks("rewards that differ by a thousandth", 60, 4, pays=(0.501, 0.5), G=5),
        _tasks("some rewards do not apply", 90, 5, missing=0.5, G=3),
        replace(
            _tasks("rewards of 0.1 and 0.7 in float32", 60, 6, pays=(0.1, 0.7), G=7, dtype=torch.float32),
            tests="stability",
        ),
        replace(_tasks("no group teaches anything", 20, 6, hardness=(0.0, 1.0)), tests="stability"),
    ),
    observe=after_sampling,
    mistakes={
        "all-kept": {"amin()": "low, high = torch.zeros(len(rewards)), torch.ones(len(rewards))"},
        "all-right-kept": {"amin()": "low, high = torch.zeros(len(rewards)), rewards.nanmean(-1)"},
        "all-wrong-kept": {"amin()": "low, high = rewards.nanmean(-1), torch.ones(len(rewards))"},
        "spread-by-rounding": {"amin()": "low, high = torch.zeros(len(rewards)), rewards.std(-1)"},
        "nan-as-zero": {"amin()": "low, high = rewards.nan_to_num().amin(-1), rewards.nan_to_num().amax(-1)"},
        "first-round-only": {"[round]": "if True:"},
        "batch-too-large": {
            "nonzero()": "rewards, informative = torch.cat(rounds), torch.cat(teaching).nonzero()[:, 0]"
        },
        "one-by-one": {"split()": "for chunk in prompts.split(1):"},
        "all-sampled": {"[round]": "if False:"},
        "mean-of-the-batch": {
            "nanmean()": "return prompts[informative], rewards[informative], rewards[informative].nanmean().item()"
        },
        "mean-of-means": {
            "nanmean()": "return prompts[informative], rewards[informative], rewards.nanmean(-1).nanmean().item()"
        },
    },
)
