"""Wrong answers as people wrote them, which earlier checks accepted: refused, and some called by name."""

import inspect
import math
import re

import pytest
import torch
from torch.distributions import Categorical

from grpo_lab.advantages import group_advantages as library_advantages
from grpo_lab.course.checking import judge
from grpo_lab.course.exercises import exercise
from grpo_lab.logprobs import completion_mask as library_mask
from grpo_lab.rewards import completion_text, normalise_text
from grpo_lab.rewards import extract_answer as library_extract
from tests.course.proof.trials import outcomes

SEEDS = (0, 1, 20_011)


def end_in_the_whole_sequence(sequences, prompt_length, eos_token_ids, tokenizer):
    completion_ids = sequences[:, prompt_length:]
    mask = library_mask(completion_ids, eos_token_ids)
    truncated = ~torch.isin(sequences, torch.tensor(eos_token_ids)).any(-1)
    rows = zip(completion_ids, mask, strict=True)
    return (
        completion_ids,
        mask,
        truncated,
        [tokenizer.decode(row[keep], skip_special_tokens=True) for row, keep in rows],
    )


def mask_of_the_whole_sequence(sequences, prompt_length, eos_token_ids, tokenizer):
    completion_ids = sequences[:, prompt_length:]
    mask = library_mask(sequences, eos_token_ids)[:, prompt_length:]
    truncated = ~torch.isin(completion_ids, torch.tensor(eos_token_ids)).any(-1)
    rows = zip(completion_ids, mask, strict=True)
    return (
        completion_ids,
        mask,
        truncated,
        [tokenizer.decode(row[keep], skip_special_tokens=True) for row, keep in rows],
    )


def accuracy(extract=library_extract, clean=str):
    def accuracy_reward(completions, answer, **kwargs):
        rewards = []
        for completion, expected in zip(completions, answer, strict=True):
            own = clean(normalise_text(extract(completion_text(completion)) or ""))
            right = own != "" and expected is not None and own == clean(normalise_text(str(expected)))
            rewards.append(None if expected is None else float(right))
        return rewards

    return accuracy_reward


def graded(extract=library_extract, clean=str):
    def graded_reward(completions, answer, **kwargs):
        rewards = []
        for completion, expected in zip(completions, answer, strict=True):
            own = clean(normalise_text(extract(completion_text(completion)) or ""))
            goal = clean(normalise_text("" if expected is None else str(expected)))
            reward = 0.01 if not goal or not own else 1.0 if own == goal else 0.5 if goal in own else 0.01
            rewards.append(None if expected is None else reward)
        return rewards

    return graded_reward


def behind_a_thought(text):
    return library_extract(text) if "<think>" in text else None


def behind_a_whole_thought(text):
    return library_extract(text) if re.match(r"\s*<think>.*</think>", text, re.DOTALL) else None


def attributes_allowed(text):
    blocks = re.findall(r"<answer[^>]*>((?:(?!<answer).)*?)</answer>", text, re.DOTALL)
    return (blocks[-1].strip() or None) if blocks else None


def blanks_allowed(text):
    blocks = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer\s*>", text, re.DOTALL)
    return (blocks[-1].strip() or None) if blocks else None


def exact_without(p_below):
    def kl_exact(logits, ref_logits):
        logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)
        terms = logp.exp() * (logp - ref_logp)
        return torch.where(logp.exp() > p_below, terms, 0).sum(-1)

    return kl_exact


def exact_clamped(logits, ref_logits):
    p, q = logits.softmax(-1), ref_logits.softmax(-1).clamp(min=1e-12)
    return (p * (p.clamp(min=1e-12).log() - q.log())).sum(-1)


def no_spread_below(least):
    def group_advantages(rewards, scale="group", ddof=1, eps=1e-4):
        centred = rewards - rewards.mean(-1, keepdim=True)
        if scale == "none":
            return centred
        std = rewards.std(correction=ddof) if scale == "batch" else rewards.std(-1, keepdim=True, correction=ddof)
        return torch.where(std < least, 0, centred / (std + eps))

    return group_advantages


def skips_above(most):
    def step_if_finite(optimizer, parameters, loss, max_grad_norm):
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
        stepped = norm < most and abs(loss) < most
        if stepped:
            optimizer.step()
        optimizer.zero_grad()
        return norm, bool(stepped)

    return step_if_finite


def loop(fixed=None, draw=None, zero="before", sign=-1, at=lambda A: A):
    """A whole loop; `fixed` are settings that it does not read."""

    def learn_by_grpo(policy, optimizer, prompts, reward, rounds, P=16, G=8, inner=4, epsilon=0.2):
        s = {"P": P, "G": G, "epsilon": epsilon} | (fixed or {})
        for _ in range(rounds):
            x = prompts[torch.randint(len(prompts), (s["P"],))].repeat_interleave(s["G"], 0)
            with torch.no_grad():
                logits = policy(x)
                y = Categorical(logits=draw(logits) if draw else logits).sample()
                old_logp = Categorical(logits=logits).log_prob(y)
                A = at(library_advantages(reward(x, y).view(-1, s["G"])).reshape(-1, 1))
            for _ in range(inner):
                ratio = (Categorical(logits=policy(x)).log_prob(y) - old_logp).exp()
                gain = torch.min(ratio * A, ratio.clamp(1 - s["epsilon"], 1 + s["epsilon"]) * A)
                if zero == "before":
                    optimizer.zero_grad()
                (sign * gain).mean().backward()
                optimizer.step()
                if zero == "after":
                    optimizer.zero_grad()

    return learn_by_grpo


def accuracy_of(before=lambda model: None, after=lambda model, mode: None):
    def held_out_accuracy(model, prompts, answers):
        mode = model.training
        before(model)
        ids = prompts
        with torch.no_grad():
            for _ in range(answers.shape[1]):
                ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
        after(model, mode)
        return float((ids[:, prompts.shape[1] :] == answers).all(-1).float().mean())

    return held_out_accuracy


def top_only(model, mode=False):
    model.training = mode


def children_only(model, mode=False):
    for module in (model, *model.children()):
        module.training = mode


def frozen(model):
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad = False


def unfrozen(model, mode):
    model.train(mode)
    for parameter in model.parameters():
        parameter.requires_grad = True


def seeded(model):
    torch.manual_seed(0)
    model.eval()


def silent(policy):
    parameters = [p for name, p in policy.named_parameters() if "embed" not in name]
    start = [p.detach().float().clone() for p in parameters]

    def callback(step, metrics):
        if step == 1:
            moves = sum((p.detach().float() - s).abs().sum() for p, s in zip(parameters, start, strict=True))
            return float(moves) / (sum(p.numel() for p in parameters) * metrics["learning_rate"])
        return None

    return callback


def returning_nothing(policy):
    measure = silent(policy)

    def callback(step, metrics):
        if step == 1:
            print(measure(step, metrics))

    return callback


def advantages(mean_axis=-1, std_axis=-1, correction=lambda ddof: ddof):
    def group_advantages(rewards, scale="group", ddof=1, eps=1e-4):
        centred, ddof = rewards - rewards.mean(mean_axis, keepdim=True), correction(ddof)
        if scale == "none":
            return centred
        per_group = rewards.std(std_axis, keepdim=True, correction=ddof)
        return centred / ((rewards.std(correction=ddof) if scale == "batch" else per_group) + eps)

    return group_advantages


def others_by_column(rewards):
    return rewards - (rewards.sum(0, keepdim=True) - rewards) / (rewards.shape[0] - 1)


def advantages_by_column(rewards, config):
    table = rewards.view(-1, config.num_generations)
    centred = table - table.nanmean(0, keepdim=True)
    spread = {"group": table.std(0, keepdim=True) + 1e-4, "batch": table.std() + 1e-4, "none": 1.0}
    return (centred / spread[config.scale_rewards]).flatten()


def estimate(k3_plus):
    def kl_estimate(logp, ref_logp, estimator="k3"):
        d = ref_logp.detach() - logp
        k2, k3 = d**2 / 2, d.expm1() - d
        return {"k1": -d, "k2": k2, "k3": k3, "k3+": k3_plus(-d, k2, k3)}[estimator]

    return kl_estimate


WRONG = [
    ("group_advantages", advantages(0, 0), "group-mixed"),
    ("group_advantages", advantages(mean_axis=0), "mean-over-prompts"),
    ("group_advantages", advantages(std_axis=0), "std-over-prompts"),
    ("group_advantages", advantages(correction=lambda ddof: 1 - ddof), "ddof-swapped"),
    ("group_advantages", advantages(correction=lambda ddof: 0), "population-std"),
    ("rloo_advantages", others_by_column, "prompts-as-others"),
    ("compute_advantages", advantages_by_column, "over-prompts"),
    ("kl_estimate", estimate(lambda k1, k2, k3: k2), "k3-plus-is-k2"),
    ("kl_estimate", estimate(lambda k1, k2, k3: k1 - k1.detach() + k2.detach()), "k3-plus-is-k2"),
    ("kl_estimate", estimate(lambda k1, k2, k3: k3 - k3.detach() + k2.detach()), "k3-plus-exchanged"),
    ("read_sequences", end_in_the_whole_sequence, "end-in-the-prompt"),
    ("read_sequences", mask_of_the_whole_sequence, "prompt-ends-the-mask"),
    ("accuracy_reward", accuracy(behind_a_thought), "thought-needed"),
    ("accuracy_reward", accuracy(behind_a_whole_thought), ""),
    ("graded_reward", graded(behind_a_thought), "thought-needed"),
    *(("accuracy_reward", accuracy(clean=lambda t, c=c: t.rstrip(c)), "") for c in (".", "%", ".,;", "°")),
    *(("accuracy_reward", accuracy(clean=lambda t, c=c: t.lstrip(c)), "") for c in ("$", "+", "=", "€")),
    *(("graded_reward", graded(clean=lambda t, c=c: t.strip(c)), "") for c in (".", "$")),
    ("extract_answer", attributes_allowed, ""),
    ("extract_answer", blanks_allowed, ""),
    ("kl_exact", exact_without(1e-4), "small-probabilities-dropped"),
    ("kl_exact", exact_without(1e-6), ""),
    ("kl_exact", exact_clamped, ""),
    ("group_advantages", no_spread_below(1e-3), "small-spread-as-none"),
    ("group_advantages", no_spread_below(1e-5), ""),
    ("step_if_finite", skips_above(1e4), "large-norm-skipped"),
    ("step_if_finite", skips_above(1e6), "large-norm-skipped"),
    ("held_out_accuracy", accuracy_of(seeded, lambda model, mode: model.train(mode)), "seeded"),
    ("held_out_accuracy", accuracy_of(top_only, top_only), "top-module-only"),
    ("held_out_accuracy", accuracy_of(children_only, lambda model, mode: model.train(mode)), ""),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), top_only), "modules-left-in-evaluation"),
    ("held_out_accuracy", accuracy_of(frozen, lambda model, mode: model.train(mode)), "left-frozen"),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), unfrozen), "all-unfrozen"),
    ("first_step_test", silent, "nothing-printed"),
    ("first_step_test", returning_nothing, "nothing-returned"),
    ("first_step_test", lambda policy: None, "no-function"),
    ("first_step_test", lambda policy: 0.5, "no-function"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "answer", "mistake"), WRONG)
def test_a_wrong_answer_is_refused_at_home_and_in_grading(name, answer, mistake, seed):
    verdict = judge(exercise(name), outcomes(exercise(name), answer, seed), seed)
    assert not verdict.right
    assert verdict.misconceptions[:1] == (mistake,) or not mistake, verdict.message
    assert verdict.points <= exercise(name).points / 2 or verdict.properties["values"] == 1


RIGHT = [
    ("learn_by_grpo", loop()),
    ("learn_by_grpo", loop(zero="after")),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), lambda model, mode: model.train(mode))),
    ("step_if_finite", skips_above(math.inf)),
    ("accuracy_reward", accuracy()),
    ("graded_reward", graded()),
]


@pytest.mark.parametrize("seed", (*SEEDS, 2, 3))
@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_the_same_answers_without_their_mistake_are_right(name, answer, seed):
    verdict = judge(exercise(name), outcomes(exercise(name), answer, seed), seed)
    assert verdict.right, verdict.details


def loss_times(factor):
    def policy_loss(*args, **kwargs):
        loss, metrics = exercise("policy_loss").function(*args, **kwargs)
        return factor * loss, metrics

    policy_loss.__signature__ = inspect.signature(exercise("policy_loss").function)
    return policy_loss


NOTHING = [
    ("policy_loss", loss_times(0), "Everything is zero"),
    ("policy_loss", loss_times(-1), "The sign is flipped."),
    ("policy_loss", loss_times(2), "It is off by a constant factor: 2 times what is expected."),
    ("completion_mask", lambda ids, ends: torch.ones_like(ids).bool(), "Your result is True everywhere"),
    ("completion_mask", lambda ids, ends: torch.zeros_like(ids).bool(), "Your result is False everywhere"),
    ("accuracy_reward", lambda completions, answer, **columns: [1.0] * len(completions), ""),
    ("step_if_finite", lambda optimizer, parameters, loss, most: (0.0, True), ""),
    ("held_out_accuracy", lambda model, prompts, answers: 0.0, ""),
    ("extract_answer", lambda text: None, ""),
    ("format_fault", lambda text: None, ""),
]


@pytest.mark.parametrize(("name", "answer", "words"), NOTHING)
def test_nothing_earns_no_fifth_and_is_named(name, answer, words):
    verdict = judge(exercise(name), outcomes(exercise(name), answer))
    assert verdict.points < exercise(name).points / 5 and words in verdict.message, verdict.message
