"""The exercises of notebook 07."""

import math
from collections import Counter
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpo_lab.advantages import group_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.course.exercise import (
    INF,
    NAN,
    Case,
    Draws,
    Exercise,
    as_stability_case,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.course.exercises.nb05 import loss_without_metrics
from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import microbatch_loss, policy_loss
from grpo_lab.rollout import read_sequences
from grpo_lab.trainer.collecting import compute_advantages
from grpo_lab.trainer.optim import step_if_finite

PAD, END, STOP = 0, 1, 2
# The tokens "a" and "b" in a row read "ab", which is another token.
WORDS = {3: "a", 4: "b", 5: "ab", 6: " ", 7: "<think>"}


class TinyTokenizer:
    """A tokenizer of eight tokens, whose encoding of a decoded text may differ from the original tokens.

    `decode` works like that of transformers' tokenizers; `encode` takes the longest matching token at each position, as
    byte-pair encoding would here.
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
            if match is None:  # no token begins with this character
                text = text[1:]
            else:
                token_id, word = match
                ids.append(token_id)
                text = text[len(word) :]
        return ids


def retokenised(sequences, prompt_length, eos_token_ids, tokenizer):
    ids, mask, truncated, texts = read_sequences(sequences, prompt_length, eos_token_ids, tokenizer)
    encoded_again = torch.full_like(ids, tokenizer.pad_token_id)
    for row, text in zip(encoded_again, texts, strict=True):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        row[: len(token_ids)] = torch.tensor(token_ids)
    return encoded_again, mask, truncated, texts


def _sequences_case(label, rows, prompt_length, ends=(END,), pad=PAD):
    return handwritten_case(label, torch.tensor(rows), prompt_length, list(ends), TinyTokenizer(pad))


def _padded_sequences(draws: Draws) -> tuple:
    """Return the arguments for five sequences, of which four have ended and one is cut off.

    They are padded on the left with the end token, as by a tokenizer without a padding token. Some prompts contain
    another end token, as the turns of a conversation do.
    """
    rows = draws.integers(5, 6, 9) + 3
    rows[::2, :2] = END
    rows[1::2, 3] = STOP
    for row, length in enumerate(draws.integers(4, 4).tolist()):
        rows[row, 4 + length :] = END
    return rows, 4, [END, STOP], TinyTokenizer(END)


def _long_sequences(draws: Draws) -> tuple:
    """Return the arguments for seven completions of 300 tokens, in which the padding token was sampled, too.

    Two rows are cut off; the others end at a random place.
    """
    rows = torch.tensor([PAD, 3, 4, 5, 6, 7])[draws.integers(6, 7, 337)]
    rows[::2, 5], rows[1::3, 36] = END, STOP
    for row, length in enumerate(draws.integers(300, 5).tolist()):
        rows[row, 37 + length] = (END, STOP)[row % 2]
        rows[row, 37 + length + 1 :: 2] = (STOP, END)[row % 2]
    return rows, 37, [STOP, END], TinyTokenizer()


READ_SEQUENCES = Exercise(
    function=read_sequences,
    cases=(
        _sequences_case("one prompt token, then 'a', 'b' and the end", [[6, 3, 4, END]], prompt_length=1),
        _sequences_case("the policy sampled 'ab' in one token", [[6, 5, END, PAD]], prompt_length=1),
        _sequences_case("cut off", [[6, 3, 4, 5]], prompt_length=1),
        _sequences_case(
            "one ended, one cut off, one ended on the last token",
            [[6, 3, END, PAD], [6, 4, 3, 3], [6, 3, 3, END]],
            prompt_length=1,
        ),
        _sequences_case("something stands after the end", [[6, 3, END, 4, 4]], prompt_length=1),
        _sequences_case("padding is the end token", [[END, 6, 3, END, END], [6, 6, 4, 4, 4]], prompt_length=2, pad=END),
        _sequences_case("two kinds of end", [[6, 3, STOP, PAD], [6, 4, 4, END]], prompt_length=1, ends=(END, STOP)),
        _sequences_case("padding sampled as a word", [[6, 3, PAD, 4, END]], prompt_length=1),
        _sequences_case("ends at once", [[6, END, PAD], [6, 3, END]], prompt_length=1),
        _sequences_case("the prompt is an end token, and the completion is cut off", [[END, 3, 4, 5]], prompt_length=1),
        _sequences_case(
            "an end token in the prompt, a long completion", [[END, 6, 3, 4, 5], [6, END, 4, 4, END]], prompt_length=2
        ),
        _sequences_case(
            "the prompt ends its turns",
            [[3, STOP, 4, STOP, 5, 6], [3, END, 4, STOP, 5, END]],
            prompt_length=4,
            ends=(END, STOP),
        ),
        _sequences_case(
            "another token than the tokenizer's ends it",
            [[6, 3, END, 4, STOP], [6, END, PAD, 3, 4]],
            prompt_length=1,
            ends=(STOP,),
        ),
        _sequences_case(
            "a word ends the completion", [[6, 3, 4, PAD], [6, 4, END, 3], [6, 3, 3, 3]], prompt_length=1, ends=(END, 4)
        ),
        drawn_case("many rows", _padded_sequences),
        drawn_stability_case("300 tokens", _long_sequences),
    ),
    mistakes=(
        wrong_function("retokenised", retokenised),
        wrong_lines(
            "eos-trimmed",
            {
                "completion_mask()": "mask = completion_mask(completion_ids, eos_token_ids) & ~torch.isin("
                "completion_ids, torch.tensor(eos_token_ids))"
            },
        ),
        wrong_lines(
            "prompt-kept",
            {"completion_mask()": "completion_ids = sequences\nmask = completion_mask(completion_ids, eos_token_ids)"},
        ),
        wrong_lines(
            "one-end-only",
            {
                "completion_mask()": "eos_token_ids = [tokenizer.eos_token_id]\n"
                "mask = completion_mask(completion_ids, eos_token_ids)"
            },
        ),
        wrong_lines(
            "first-of-the-ends",
            {
                "completion_mask()": "eos_token_ids = eos_token_ids[:1]\n"
                "mask = completion_mask(completion_ids, eos_token_ids)"
            },
        ),
        wrong_lines(
            "truncated-turned-round",
            {"isin()": "truncated = torch.isin(completion_ids, torch.tensor(eos_token_ids)).any(-1)"},
        ),
        wrong_lines(
            "last-token-decides",
            {"isin()": "truncated = ~torch.isin(completion_ids[:, -1], torch.tensor(eos_token_ids))"},
        ),
        wrong_lines(
            "special-tokens-shown",
            {"decode()": "texts = [tokenizer.decode(row[in_completion]) for row, in_completion in rows]"},
        ),
        wrong_lines(
            "end-in-the-prompt",
            {"isin()": "truncated = ~torch.isin(sequences, torch.tensor(eos_token_ids, device=mask.device)).any(-1)"},
        ),
        wrong_lines(
            "prompt-ends-the-mask",
            {"completion_mask()": "mask = completion_mask(sequences, eos_token_ids)[:, prompt_length:]"},
        ),
        wrong_lines("full-is-truncated", {"isin()": "truncated = mask.all(-1)"}),
        wrong_lines(
            "padding-read", {"decode()": "texts = [tokenizer.decode(row, skip_special_tokens=True) for row, _ in rows]"}
        ),
        wrong_lines("cut-off-by-one-end", {"isin()": "truncated = (completion_ids != eos_token_ids[0]).all(-1)"}),
    ),
)


EPS = 1e-4
# In float32 the group means and the differences from them are exact; the squares of the rewards are not.
REWARDS_NEAR_10000 = [10001.0, 10000.0, 10000.0, 10002.0, 10000.0, NAN, 10004.0, NAN]


def groups_mixed(rewards, config):
    wrongly_grouped = rewards.view(config.num_generations, -1).T
    return compute_advantages(wrongly_grouped.flatten(), config).view_as(wrongly_grouped).T.flatten()


def nan_spreads(rewards, config):
    grouped_rewards = rewards.view(-1, config.num_generations)
    centred = grouped_rewards - grouped_rewards.mean(-1, keepdim=True)
    divisor = {"group": grouped_rewards.std(-1, keepdim=True) + EPS, "batch": rewards.std() + EPS, "none": 1.0}
    return (centred / divisor[config.scale_rewards]).flatten()


def over_prompts(rewards, config):
    grouped_rewards = rewards.view(-1, config.num_generations)
    centred = grouped_rewards - grouped_rewards.nanmean(0, keepdim=True)
    divisor = {"group": grouped_rewards.std(0, keepdim=True) + EPS, "batch": rewards.std() + EPS, "none": 1.0}
    return (centred / divisor[config.scale_rewards]).flatten()


def _rewards_and_config(rewards, G, scale="group", dtype=torch.float64):
    """Return the rewards as a tensor, and settings with their number and with G completions per prompt."""
    config = GRPOConfig(generation_batch_size=len(rewards), num_generations=G, scale_rewards=scale)
    return torch.as_tensor(rewards, dtype=dtype), config


def _drawn_rewards(draws: Draws, P, G, scale="group", num_missing=0):
    rewards = draws.normal(P * G) + draws.normal(P).repeat_interleave(G)
    rewards[torch.randperm(P * G, generator=draws.generator)[:num_missing]] = NAN
    return _rewards_and_config(rewards, G, scale)


def alone_keeps_its_reward(rewards, config):
    advantages = compute_advantages(rewards, config).view(-1, config.num_generations)
    grouped_rewards = rewards.view(-1, config.num_generations)
    has_reward = ~grouped_rewards.isnan()
    is_alone = has_reward & (has_reward.sum(-1, keepdim=True) == 1)
    return torch.where(is_alone, grouped_rewards, advantages).flatten()


COMPUTE_ADVANTAGES = Exercise(
    function=compute_advantages,
    cases=(
        handwritten_case("one prompt: right and wrong, centred only", *_rewards_and_config([1.0, 0.0], 2, "none")),
        handwritten_case(
            "two prompts, three completions each", *_rewards_and_config([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], 3)
        ),
        handwritten_case("an easy prompt and a hard one", *_rewards_and_config([1.0, 1.0, 0.0, 0.0], 2)),
        handwritten_case("no reward applies to one of three", *_rewards_and_config([1.0, NAN, 0.0], 3)),
        handwritten_case("one reward alone", *_rewards_and_config([NAN, 2.0, 1.0, 0.0], 2)),
        handwritten_case("no reward at all", *_rewards_and_config([NAN, NAN, 1.0, 3.0], 2, "none")),
        handwritten_case(
            "two prompts of unlike spread, one spread for all", *_rewards_and_config([1.0, 0.0, 10.0, 0.0], 2, "batch")
        ),
        drawn_case("many prompts", lambda draws: _drawn_rewards(draws, P=3, G=4)),
        drawn_case("one spread for all", lambda draws: _drawn_rewards(draws, P=3, G=5, scale="batch")),
        drawn_case(
            "one spread for all, some NaN", lambda draws: _drawn_rewards(draws, P=3, G=5, scale="batch", num_missing=4)
        ),
        stability_case("rewards that differ by 1e-6", *_rewards_and_config([0.0, 1e-6, 3e-6, 0.0, 0.0, 2e-6], 3)),
        stability_case("float32, rewards near 10000", *_rewards_and_config(REWARDS_NEAR_10000, 4, dtype=torch.float32)),
        stability_case(
            "equal rewards, and a prompt without any",
            *_rewards_and_config([0.1, 0.1, 0.1, NAN, NAN, NAN, 7.0, NAN, 7.0], 3),
        ),
        stability_case("one reward in all, one spread for all", *_rewards_and_config([NAN, 2.0, NAN, NAN], 2, "batch")),
        stability_case(
            "two rewards in all, one spread for all", *_rewards_and_config([1.0, 0.0, NAN, NAN], 2, "batch")
        ),
        drawn_stability_case(
            "15 prompts, one spread for all, many NaN",
            lambda draws: _drawn_rewards(draws, P=15, G=7, scale="batch", num_missing=40),
        ),
    ),
    mistakes=(
        wrong_function("group-mixed", groups_mixed),
        wrong_lines("one-group", {"rearrange()": 'grouped_rewards = rearrange(rewards, "(P G) -> P G", P=1)'}),
        wrong_lines(
            "nan-as-zero",
            {
                "rearrange()": "grouped_rewards = rearrange("
                "(rewards := rewards.nan_to_num(0.0)), '(P G) -> P G', G=config.num_generations)"
            },
        ),
        wrong_function("nan-spreads", nan_spreads),
        wrong_function("over-prompts", over_prompts),
        wrong_function("no-centre", lambda rewards, config: rewards.nan_to_num(0.0)),
        wrong_function(
            "nan-stays",
            lambda rewards, config: torch.where(rewards.isnan(), rewards, compute_advantages(rewards, config)),
        ),
        wrong_function("alone-keeps-its-reward", alone_keeps_its_reward),
    ),
)


def _unit_microbatch_case(label, loss_type, mask_rows, num_rows, num_items, **settings):
    """Return a case with advantages of 1 and no old policy, in which each token under the mask adds -1 to the loss."""

    def build(seed: int) -> tuple[tuple, dict]:
        mask = torch.tensor(mask_rows)
        logp = f64([[-1.0] * mask.shape[1]] * len(mask))
        advantages = torch.ones(len(mask), dtype=torch.float64)
        return (logp, advantages, mask, num_rows, num_items), {"loss_type": loss_type, **settings}

    return Case(build, label)


def _drawn_microbatch_case(label, loss_type, B, T, dtype=torch.float64, **settings):
    """Return a case with a drawn micro-batch of B rows, from an update with 5 more rows and 17 more tokens."""

    def build(seed: int) -> tuple[tuple, dict]:
        draws = Draws(seed)
        logp, mask = (draws.logp(B, T) - 0.1).to(dtype), draws.ragged(B, T)
        other_logps = {name: logp + draws.normal(B, T, scale=0.3).to(dtype) for name in ("old_logp", "ref_logp")}
        arguments = (logp, draws.normal(B).to(dtype), mask, B + 5, mask.sum() + 17)
        return arguments, {"loss_type": loss_type, "beta": 0.1, **other_logps, **settings}

    return Case(build, label)


# Rows of a mask, with one, two and three tokens.
ONE, TWO, THREE = [True, False, False], [True, True, False], [True, True, True]

MICROBATCH_LOSS = Exercise(
    function=microbatch_loss,
    cases=(
        _unit_microbatch_case("grpo: one row of four", "grpo", mask_rows=[THREE], num_rows=4, num_items=9),
        _unit_microbatch_case("grpo: three rows of four", "grpo", mask_rows=[ONE, TWO, THREE], num_rows=4, num_items=9),
        _unit_microbatch_case("dapo: one row, 2 tokens of 8", "dapo", mask_rows=[TWO], num_rows=4, num_items=8),
        _unit_microbatch_case(
            "dr_grpo: two rows of six",
            "dr_grpo",
            mask_rows=[TWO, THREE],
            num_rows=6,
            num_items=12,
            max_completion_length=10,
        ),
        _unit_microbatch_case(
            "bnpo: two rows of four, all full", "bnpo", mask_rows=[THREE, THREE], num_rows=4, num_items=12
        ),
        _drawn_microbatch_case("grpo", "grpo", B=3, T=4),
        _drawn_microbatch_case("cispo", "cispo", B=3, T=4, epsilon_high=2.0),
        _drawn_microbatch_case(
            "luspo, one ratio per sequence", "luspo", B=3, T=4, importance_sampling_level="sequence"
        ),
        _drawn_microbatch_case("grpo, another clip range", "grpo", B=3, T=4, epsilon=0.05, epsilon_high=0.5, delta=1.6),
        _drawn_microbatch_case("vespo, one row of many", "vespo", B=1, T=4, beta=0.7),
        _unit_microbatch_case(
            "luspo: two rows of four, one without tokens",
            "luspo",
            mask_rows=[TWO, [False] * 3],
            num_rows=4,
            num_items=7,
        ),
        as_stability_case(
            _unit_microbatch_case("grpo: no tokens", "grpo", mask_rows=[[False] * 3] * 2, num_rows=5, num_items=7)
        ),
        as_stability_case(_drawn_microbatch_case("grpo, 300 tokens", "grpo", B=5, T=300)),
    ),
    gradient_of=("logp",),
    observations=loss_without_metrics,
    mistakes=(
        wrong_lines("microbatch-mean", {"5.16": "loss = loss"}),
        wrong_lines(
            "microbatch-token-mean",
            {
                "policy_loss()": "loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, "
                "num_items=mask.sum(), **settings)"
            },
        ),
        wrong_lines("always-weighted", {"5.15": "share = len(mask) / num_rows"}),
        wrong_lines(
            "weighted-by-tokens",
            {"5.15": "share = 1.0 if divides_by_update_tokens(loss_type) else mask.sum() / num_items"},
        ),
        wrong_lines(
            "share-turned-round",
            {"5.15": "share = 1.0 if divides_by_update_tokens(loss_type) else num_rows / len(mask)"},
        ),
    ),
)


def after_step(result, args, kwargs):
    """Observe both results, the gradients, and the optimizer's moments.

    The parameters need no observation, since the check compares all arguments that a function changes.
    """
    optimizer, parameters, *_ = args
    norm, was_updated = result if isinstance(result, tuple) and len(result) == 2 else (result, "not returned")
    if isinstance(norm, float) and not math.isfinite(norm):
        norm = INF  # NaN is as right as infinity
    has_gradient = any(bool((p.grad != 0).any()) for p in parameters if p.grad is not None)
    observed = {
        "the norm": norm,
        "the second result (was the update made?)": was_updated,
        "what is left of the gradients": "something" if has_gradient else "nothing",
    }
    for number, state in optimizer.state_dict()["state"].items():
        observed |= {f"{name} of parameter {number}": x for name, x in state.items() if isinstance(x, torch.Tensor)}
    return observed


def _step_case(label, gradients, loss=0.5, max_grad_norm=1.0, optimizer_name="sgd", dtype=torch.float64):
    """Return a case with one parameter for each of `gradients`, which may also be a function of `Draws`.

    AdamW has already made a step, so its moments would move the weights even without a gradient.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        if callable(gradients):
            gradient_tensors = gradients(Draws(seed))
        else:
            gradient_tensors = [torch.tensor(gradient).to(dtype) for gradient in gradients]
        parameters = [nn.Parameter(torch.ones_like(gradient)) for gradient in gradient_tensors]
        optimizer_class = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[optimizer_name]
        optimizer = optimizer_class(parameters, lr=0.5)
        if optimizer_name == "adam":
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.25)
            optimizer.step()
        for parameter, gradient in zip(parameters, gradient_tensors, strict=True):
            parameter.grad = gradient.clone()
        return (optimizer, parameters, loss, max_grad_norm), {}

    return Case(build, label)


STEP_IF_FINITE = Exercise(
    function=step_if_finite,
    cases=(
        _step_case("a gradient of norm 1/2", [[0.3, -0.4]]),
        _step_case("a gradient of norm 5, clipped to 1", [[3.0, 4.0]]),
        _step_case("a gradient of norm 5, and room for 100", [[3.0, 4.0]], max_grad_norm=100.0),
        _step_case("a gradient of norm 1/2, clipped to 1/4", [[0.3, -0.4]], max_grad_norm=0.25),
        _step_case("a loss below 0", [[0.3, -0.4]], loss=-0.3),
        _step_case("a gradient of norm 5e6", [[3e6, 4e6]]),
        _step_case("a gradient of norm 1e-9", [[6e-10, 8e-10]]),
        _step_case("a loss of 1e7", [[0.3, -0.4]], loss=1e7),
        _step_case("a loss of -1e7 and a large gradient, with Adam", [[3e9], [4e9]], loss=-1e7, optimizer_name="adam"),
        _step_case("a gradient that is NaN", [[NAN, NAN]]),
        _step_case("a loss that is NaN", [[0.3, -0.4]], loss=NAN),
        _step_case("a gradient that is infinite", [[INF, -0.4]]),
        _step_case("a loss that is infinite", [[0.3, -0.4]], loss=INF),
        _step_case("a loss that is NaN, with Adam", [[0.3], [0.2]], loss=NAN, optimizer_name="adam"),
        _step_case("two parameters", lambda draws: [draws.normal(3), draws.normal(2)], max_grad_norm=0.7),
        _step_case(
            "two parameters, with Adam",
            lambda draws: [draws.normal(2, 3), draws.normal(4)],
            max_grad_norm=0.3,
            optimizer_name="adam",
        ),
        _step_case("plus and minus infinity, with Adam", [[0.3], [INF, -INF], [0.1]], optimizer_name="adam"),
    ),
    observations=after_step,
    mistakes=(
        wrong_lines("nonfinite-step", {"isfinite()": "stepped = True"}),
        wrong_lines("loss-only", {"isfinite()": "stepped = math.isfinite(loss)"}),
        wrong_lines("gradient-only", {"isfinite()": "stepped = math.isfinite(norm)"}),
        wrong_lines("gradients-kept", {"zero_grad()": "if stepped:\n    optimizer.zero_grad()"}),
        wrong_lines("negative-loss-skipped", {"isfinite()": "stepped = math.isfinite(norm) and 0 <= loss < math.inf"}),
        wrong_lines("large-norm-skipped", {"isfinite()": "stepped = norm < 1e4 and abs(loss) < 1e4"}),
        wrong_lines("unclipped", {"clip_gradients()": "norm = clip_gradients(parameters, math.inf)"}),
        wrong_lines("not-cleared", {"zero_grad()": ""}),
    ),
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
    """Train a language model with GRPO, without a KL term.

    Each step samples completions, scores them, computes advantages, and makes `num_iterations` updates.

    Args:
        model: The model: it takes token ids (B, S) and returns logits (B, S, V). The logits at a position are those of
            the next token.
        optimizer: Optimizer of the model's parameters. They may have gradients from before the call; no update may use
            them.
        prompts: The prompts, all of the same length. Every step uses all of them.
        sample: A function that takes the model and prompts (B, L) and returns completions (B, T), one for each row,
            sampled at temperature 1. A completion includes its end token; after it, the row is filled with the end
            token.
        reward: A function that takes prompts (B, L) and completions (B, T), where row b of one belongs to row b of the
            other, and returns rewards (B,).
        end: The end token.
        steps: Number of steps; each samples new completions.
        num_generations: Number of completions of each prompt. They form the group of Eq. (2.7).
        num_iterations: Number of updates on the completions of a step.
        epsilon: Clip range of the loss. The loss is `policy_loss` of notebook 05 with its default settings.

    Returns:
        The mean reward of each step.
    """
    prompt_ids, mean_rewards = prompts.repeat_interleave(num_generations, dim=0), []  # B L
    for _ in range(steps):
        completion_ids = sample(model, prompt_ids)  # B T
        rewards = reward(prompt_ids, completion_ids)  # B
        advantages = group_advantages(rewards.view(-1, num_generations)).flatten()  # B
        mask = completion_mask(completion_ids, end)  # B T
        ids = torch.cat([prompt_ids, completion_ids], dim=1)
        old_logp = None
        for _ in range(num_iterations):  # [updates]
            logits = model(ids)[:, prompts.shape[1] - 1 : -1]
            logp = token_logprobs(logits, completion_ids)  # B T
            old_logp = logp.detach() if old_logp is None else old_logp  # [old]
            loss, _ = policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean_rewards.append(rewards.mean().item())
    return mean_rewards


class LastWordTask:
    """A task whose prompts are words: a completion is right if it is the answer to the last word, then the end token.

    The words are the token ids from 2 to `words + 1`, and the answer to word w is the token w + `words`. The model
    predicts a token from the previous one alone. A sampled completion depends on the weights, on its prompt and on how
    often this prompt was sampled before, but not on the other rows of the call. So every right answer to the exercise
    gets the same completions, however it divides the prompts among calls.
    """

    def __init__(self, seed: int, words: int, length: int):
        self.words, self.length = words, length
        self.times_sampled: Counter[tuple[int, ...]] = Counter()
        self.model = Draws(seed).fill(nn.Embedding(2 + 2 * words, 2 + 2 * words))
        self.seed = seed
        self.model.weight.data *= 0.3

    @torch.no_grad()
    def sample(self, model, rows):
        noise = torch.stack([self._gumbel_noise(tuple(row)) for row in rows.tolist()])  # B T V
        ids, ended = rows, torch.zeros(len(rows), dtype=torch.bool)
        for t in range(self.length):
            token = (model(ids)[:, -1] + noise[:, t]).argmax(-1).masked_fill(ended, END)
            ids, ended = torch.cat([ids, token[:, None]], dim=1), ended | (token == END)
        return ids[:, rows.shape[1] :]

    def _gumbel_noise(self, prompt: tuple):
        """Draw the noise (T, V) of a completion: the argmax of logits plus Gumbel noise is a sample from them."""
        self.times_sampled[prompt] += 1
        draws = Draws(hash((self.seed, prompt, self.times_sampled[prompt])) % 2**31)
        uniform = torch.rand(self.length, len(self.model.weight), generator=draws.generator, dtype=torch.float64)
        return -(-uniform.clamp(min=1e-12).log()).log()

    def reward(self, rows, completion_ids):
        answers_last_word = completion_ids[:, 0] == rows[:, -1] + self.words
        is_right = answers_last_word & (completion_ids[:, 1] == END)
        return (0.5 * answers_last_word + 0.5 * is_right).double() + 0.1 * (completion_ids != END).double().mean(-1)

    def held_out_accuracy(self, model) -> float:
        """Return the accuracy of the most likely completion for every last word.

        The model sees only the previous token, so this holds for all prompts, including those not trained on.
        """
        words = 2 + torch.arange(self.words)
        first = model(words).argmax(-1)
        return float(((first == words + self.words) & (model(first).argmax(-1) == END)).double().mean())


def after_training(mean_rewards, args, kwargs):
    """Observe rewards and weights of a short run; of a long one, whether the model has learned the task."""
    model, task, steps = args[0], args[3].__self__, args[6]
    if steps > 3:
        return {"whether most held-out prompts are answered right": task.held_out_accuracy(model) > 0.6}
    return {"the mean rewards": mean_rewards, "the weights after the updates": model.weight}


def _training_case(
    label: str,
    steps: int,
    num_prompts: int = 3,
    words: int = 3,
    length: int = 4,
    learning_rate=5.0,
    initial_gradient=0.0,
    seed_offset=0,
    **settings,
):
    """Return a case that trains for a number of steps on drawn prompts of two words.

    Before the call every gradient is `initial_gradient`.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        task, draws = LastWordTask(seed + seed_offset, words, length), Draws(seed + seed_offset + 1)
        pairs = torch.cartesian_prod(torch.arange(words), torch.arange(words))
        prompts = 2 + pairs[torch.randperm(len(pairs), generator=draws.generator)[:num_prompts]]
        task.model.weight.grad = torch.full_like(task.model.weight, initial_gradient)
        optimizer_class = torch.optim.SGD if steps <= 3 else torch.optim.Adam
        optimizer = optimizer_class(task.model.parameters(), lr=learning_rate)
        return (task.model, optimizer, prompts, task.sample, task.reward, END), {"steps": steps, **settings}

    return Case(build, label)


TRAIN_BY_GRPO = Exercise(
    function=train_by_grpo,
    cases=(
        _training_case("one step, one update", steps=1, num_iterations=1),
        _training_case("one step, three updates, a narrow clip", steps=1, num_iterations=3, epsilon=0.05),
        _training_case("as many prompts as completions", steps=1, num_prompts=4),
        _training_case("a gradient was left over", steps=1, initial_gradient=1.0),
        _training_case("two steps", steps=2, num_prompts=2, length=6, num_generations=6),
        *(
            _training_case(
                f"a whole training, number {n}",
                steps=30,
                num_prompts=7,
                length=2,
                learning_rate=0.2,
                seed_offset=n,
                num_generations=16,
            )
            for n in (1, 2, 3)
        ),
    ),
    observations=after_training,
    tolerance=1e-5,
    mistakes=(
        wrong_lines("ascends", {"backward()": "(-loss).backward()"}),
        wrong_lines("no-centre", {"group_advantages()": "advantages = rewards"}),
        wrong_lines("one-group", {"group_advantages()": "advantages = group_advantages(rewards[None]).flatten()"}),
        wrong_lines(
            "group-mixed", {"repeat_interleave()": "prompt_ids, mean_rewards = prompts.repeat(num_generations, 1), []"}
        ),
        wrong_lines("eos-trimmed", {"completion_mask()": "mask = completion_ids != end"}),
        wrong_lines(
            "padding-counted", {"completion_mask()": "mask = torch.ones_like(completion_ids, dtype=torch.bool)"}
        ),
        wrong_lines("off-by-one", {"model()": "logits = model(ids)[:, prompts.shape[1] :]"}),
        wrong_lines("old-not-frozen", {"[old]": "old_logp = logp.detach()"}),
        wrong_lines("gradients-kept", {"zero_grad()": ""}),
        wrong_lines("one-update", {"[updates]": "for _ in range(1):"}),
        wrong_lines("gradient-of-before", {"zero_grad()": "", "step()": "optimizer.step()\noptimizer.zero_grad()"}),
    ),
)


def dynamic_sampling(
    sample: Callable, prompts: Int[Tensor, " N"], size: int
) -> tuple[Int[Tensor, " P"], Float[Tensor, "P G"], float]:
    """Sample groups until a batch is full of groups that teach something: their rewards are not all equal.

    A round samples the next `size` prompts in the given order. Rounds continue until `size` groups teach something or
    the prompts run out. In the second case the last round may have fewer prompts, and the batch may be smaller than
    `size`, or even empty.

    A reward of NaN means that no reward applies to a completion. Ignore it when you compare the rewards of its group; a
    group with only one other reward teaches nothing.

    Args:
        sample: A function that takes prompts (M,) and returns the rewards (M, G) of new completions.
        prompts: Indices of the prompts in the order in which they are sampled, all different.
        size: Number of groups in a full batch, and number of prompts in a round.

    Returns:
        The prompts of the first `size` groups that teach something, in the given order; the rewards of these groups;
        and the mean of *all* rewards sampled, without NaN. The mean includes the groups that teach nothing, because
        the mean of the kept groups alone would not tell how good the policy is.
    """
    all_rewards: list[Tensor] = []  # M G for each round
    is_informative: list[Tensor] = []  # M for each round
    for round_prompts in prompts.split(size):
        rewards = sample(round_prompts)  # M G
        low, high = rewards.nan_to_num(INF).amin(-1), rewards.nan_to_num(-INF).amax(-1)
        all_rewards.append(rewards)
        is_informative.append(low < high)
        if torch.cat(is_informative).sum() >= size:  # [round]
            break
    rewards, indices = torch.cat(all_rewards), torch.cat(is_informative).nonzero()[:size, 0]
    return prompts[indices], rewards[indices], rewards.nanmean().item()


class PromptPool:
    """Prompts of different difficulty, numbered from 0 to 199, with a record of those that were sampled.

    Args:
        draws: Source of the random numbers.
        success_rates: Probabilities of a right completion; one of them is drawn for each prompt.
        G: Number of completions of a prompt.
        reward_values: Reward of a right completion, and of a wrong one.
        missing_rate: Probability that a reward is NaN.
        dtype: Precision of the rewards.
    """

    def __init__(
        self,
        draws: Draws,
        success_rates: list[float],
        G: int,
        reward_values: tuple[float, float],
        missing_rate: float,
        dtype: torch.dtype,
    ):
        self.success_rates = torch.tensor(success_rates)[draws.integers(len(success_rates), 200)]
        self.draws, self.G, self.reward_values = draws, G, reward_values
        self.missing_rate, self.dtype = missing_rate, dtype
        self.sampled_prompts: list[int] = []

    def sample(self, prompts):
        self.sampled_prompts += prompts.tolist()
        uniform = torch.rand(len(prompts), self.G, 2, generator=self.draws.generator)
        is_right = uniform[..., 0] < self.success_rates[prompts, None]
        right, wrong = (torch.tensor(value, dtype=self.dtype) for value in self.reward_values)
        rewards = torch.where(is_right, right, wrong)
        return rewards.masked_fill(uniform[..., 1] < self.missing_rate, NAN)


def after_sampling(result, args, kwargs):
    """Observe the batch, the mean reward, and the prompts that were sampled for it."""
    prompts, rewards, mean = result
    return {
        "the prompts of the batch": prompts,
        "the rewards of the batch": rewards,
        "the mean reward": mean,
        "the prompts that were sampled": args[0].__self__.sampled_prompts,
    }


def _pool_case(
    label,
    num_prompts,
    size,
    success_rates=(0.0, 0.5, 1.0),
    G=4,
    reward_values=(1.0, 0.0),
    missing_rate=0.0,
    dtype=torch.float64,
):
    """Return a case with prompts of a `PromptPool` in a drawn order."""

    def build(seed: int) -> tuple[tuple, dict]:
        draws = Draws(seed)
        prompts = torch.randperm(200, generator=draws.generator)[:num_prompts]
        pool = PromptPool(draws, list(success_rates), G, reward_values, missing_rate, dtype)
        return (pool.sample, prompts, size), {}

    return Case(build, label)


DYNAMIC_SAMPLING = Exercise(
    function=dynamic_sampling,
    cases=(
        _pool_case("every group teaches", num_prompts=12, size=3, success_rates=(0.5,), G=16),
        _pool_case("a third is too easy, a third too hard", num_prompts=60, size=4),
        _pool_case("hard prompts: nearly all groups are wrong", num_prompts=80, size=3, success_rates=(0.0, 0.1)),
        _pool_case("easy prompts: nearly all groups are right", num_prompts=80, size=3, success_rates=(0.9, 1.0)),
        _pool_case("the prompts run out", num_prompts=20, size=12, success_rates=(0.0, 0.0, 0.5)),
        _pool_case(
            "the last round brings more than is needed",
            num_prompts=90,
            size=12,
            success_rates=(0.0, 0.5, 0.5, 0.5),
            G=6,
        ),
        _pool_case("two rounds and a half", num_prompts=30, size=12, success_rates=(0.05, 0.5), G=8),
        _pool_case("as many completions as prompts of a batch", num_prompts=60, size=5, G=5),
        _pool_case("rewards of 0.7 and -0.1", num_prompts=60, size=4, reward_values=(0.7, -0.1), G=6),
        _pool_case("rewards that differ by a thousandth", num_prompts=60, size=4, reward_values=(0.501, 0.5), G=5),
        _pool_case("some rewards do not apply", num_prompts=90, size=5, missing_rate=0.5, G=3),
        as_stability_case(
            _pool_case(
                "rewards of 0.1 and 0.7 in float32",
                num_prompts=60,
                size=6,
                reward_values=(0.1, 0.7),
                G=7,
                dtype=torch.float32,
            )
        ),
        as_stability_case(_pool_case("no group teaches anything", num_prompts=20, size=6, success_rates=(0.0, 1.0))),
    ),
    observations=after_sampling,
    mistakes=(
        wrong_lines("all-kept", {"amin()": "low, high = torch.zeros(len(rewards)), torch.ones(len(rewards))"}),
        wrong_lines("all-right-kept", {"amin()": "low, high = torch.zeros(len(rewards)), rewards.nanmean(-1)"}),
        wrong_lines("all-wrong-kept", {"amin()": "low, high = rewards.nanmean(-1), torch.ones(len(rewards))"}),
        wrong_lines("spread-by-rounding", {"amin()": "low, high = torch.zeros(len(rewards)), rewards.std(-1)"}),
        wrong_lines(
            "nan-as-zero", {"amin()": "low, high = rewards.nan_to_num().amin(-1), rewards.nan_to_num().amax(-1)"}
        ),
        wrong_lines("first-round-only", {"[round]": "if True:"}),
        wrong_lines(
            "batch-too-large",
            {"nonzero()": "rewards, indices = torch.cat(all_rewards), torch.cat(is_informative).nonzero()[:, 0]"},
        ),
        wrong_lines("one-by-one", {"split()": "for round_prompts in prompts.split(1):"}),
        wrong_lines("all-sampled", {"[round]": "if False:"}),
        wrong_lines(
            "mean-of-the-batch",
            {"nanmean()": "return prompts[indices], rewards[indices], rewards[indices].nanmean().item()"},
        ),
        wrong_lines(
            "mean-of-means",
            {"nanmean()": "return prompts[indices], rewards[indices], rewards.nanmean(-1).nanmean().item()"},
        ),
    ),
)
