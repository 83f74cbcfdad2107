"""Wrong answers that earlier checks accepted are rejected, and some of them are named; right ones are accepted."""

import inspect
import math
import re

import pytest
import torch
from torch.distributions import Categorical

from grpo_lab.advantages import group_advantages as library_advantages
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome import equal_outcomes
from grpo_lab.course.checking.run_cases import outcome_of
from grpo_lab.course.exercise import function_from_source, source_of
from grpo_lab.course.exercises import find_exercise
from grpo_lab.logprobs import completion_mask as library_mask
from grpo_lab.rewards import completion_text, normalise_text
from grpo_lab.rewards import extract_answer as library_extract
from tests.course.proof.trials import outcomes
from tests.course.right_answers.nb11 import RIGHT as RIGHT_NB11
from tests.support.few_fast import few_fast

SEEDS = (0, 1, 20_011)


def exercise_of(case):
    """Return the name of its exercise: answers to one exercise share a fast seed, and so the outcomes of mistakes."""
    return case[0]


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


def grpo_loop(fixed=None, draw=None, zero="before", sign=-1, change_advantages=lambda A: A):
    """Return a training loop. `fixed` has constants that replace the arguments of these names."""

    def learn_by_grpo(policy, optimizer, prompts, reward, rounds, P=16, G=8, inner=4, epsilon=0.2):
        s = {"P": P, "G": G, "epsilon": epsilon} | (fixed or {})
        for _ in range(rounds):
            x = prompts[torch.randint(len(prompts), (s["P"],))].repeat_interleave(s["G"], 0)
            with torch.no_grad():
                logits = policy(x)
                y = Categorical(logits=draw(logits) if draw else logits).sample()
                old_logp = Categorical(logits=logits).log_prob(y)
                A = change_advantages(library_advantages(reward(x, y).view(-1, s["G"])).reshape(-1, 1))
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


def guess_training(
    sign=-1, order=torch.Tensor.repeat_interleave, stop=True, words=False, centre=True, greedy=False, zero=True
):
    """Return a training loop for the game higher or lower that adds up log-probabilities during play."""

    def learn_by_playing(policy, optimizer, world, secrets, steps, num_generations=8):
        rows = order(secrets, num_generations)
        for _ in range(steps):
            tokens, over, pushed = rows[:, None][:, :0], torch.zeros(len(rows)).bool(), 0.0
            for _ in range(world.guesses):
                logp = policy(torch.nn.functional.pad(tokens, (0, 1)))[:, -1].log_softmax(-1)
                guess = logp.argmax(-1) if greedy else Categorical(logits=logp).sample()
                word = world.answer(rows, guess)
                pushed = pushed + logp.gather(1, guess[:, None])[:, 0] * ~(over & stop)
                tokens = torch.cat([tokens, guess[:, None], word[:, None]], dim=1)
                if words:
                    expected = policy(tokens)[:, -1].log_softmax(-1)
                    pushed = pushed + expected.gather(1, word[:, None])[:, 0] * ~over
                over = over | (word == world.found)
            won = over.float().view(-1, num_generations)
            advantages = (won - centre * won.mean(-1, keepdim=True)).flatten()
            if zero:
                optimizer.zero_grad()
            (sign * pushed * advantages).mean().backward()
            optimizer.step()

    return learn_by_playing


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


def set_mode_of_top_only(model, mode=False):
    model.training = mode


def set_mode_of_children_only(model, mode=False):
    for module in (model, *model.children()):
        module.training = mode


def freeze(model):
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad = False


def without_gradients(model):
    model.eval()
    torch.set_grad_enabled(False)


def eval_and_zero_grad(model):
    model.eval()
    model.zero_grad()


def unfreeze(model, mode):
    model.train(mode)
    for parameter in model.parameters():
        parameter.requires_grad = True


def seed_and_eval(model):
    torch.manual_seed(0)
    model.eval()


def callback_that_prints_nothing(policy):
    parameters = [p for name, p in policy.named_parameters() if "embed" not in name]
    start = [p.detach().float().clone() for p in parameters]

    def callback(step, metrics):
        if step == 1:
            moves = sum((p.detach().float() - s).abs().sum() for p, s in zip(parameters, start, strict=True))
            return float(moves) / (sum(p.numel() for p in parameters) * metrics["learning_rate"])
        return None

    return callback


def returning_nothing(policy):
    measure = callback_that_prints_nothing(policy)

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


def sampler(shift=0, mask_of=lambda mask: mask, uniform_of=lambda u: u):
    """Return a sampler that finds the candidates of top-p in a sorted table."""

    def sample_tokens(model, prompt_ids, prompt_mask, uniform, end, temperature=1.0, top_p=1.0):
        B, T = uniform.shape
        ids = torch.cat([prompt_ids, torch.full((B, T), end)], dim=1)
        mask = torch.cat([mask_of(prompt_mask), torch.ones(B, T).bool()], dim=1)
        going = torch.ones(B).bool()
        for t in range(T):
            L = prompt_ids.shape[1] + t
            p = torch.softmax(model(ids[:, :L], mask[:, :L])[:, -1] / temperature, dim=-1)
            high = p.sort(dim=-1, descending=True)[0]
            rank = (high.cumsum(-1) < top_p - 1e-12).sum(-1, keepdim=True) + shift
            p = torch.where(p >= high.gather(-1, rank.clamp(0, p.shape[-1] - 1)), p, 0.0)
            edges = (p / p.sum(-1, keepdim=True)).cumsum(-1)
            drawn = torch.searchsorted(edges, uniform_of(uniform)[:, t : t + 1].contiguous(), right=True)[:, 0]
            ids[going, L] = drawn.clamp(max=p.shape[-1] - 1)[going]
            going &= ids[:, L] != end
        return ids[:, prompt_ids.shape[1] :]

    return sample_tokens


def batch_of(teaches, mean_of_all=True, limit=True, may_be_empty=True):
    def dynamic_sampling(sample, prompts, size):
        chosen, rewards, everything, first = [], [], [], 0
        while len(chosen) < size and first < len(prompts):
            group = sample(prompts[first : first + size])
            everything.append(group)
            for p, r in zip(prompts[first : first + size].tolist(), group, strict=True):
                if teaches(r[~r.isnan()]):
                    chosen.append(p)
                    rewards.append(r)
            first += size
        n = size if limit else len(chosen)
        rewards = torch.stack(rewards[:n]) if chosen or not may_be_empty else group[:0]
        everything = torch.cat(everything) if mean_of_all else rewards
        return torch.tensor(chosen[:n], dtype=torch.long), rewards, float(everything.nanmean())

    return dynamic_sampling


def reward_by(worth):
    """Return a reward function whose reward for a completion is worth(text, expected)."""

    def design_reward(completions, answer, **kwargs):
        return [None if a is None else float(worth(y, a)) for y, a in zip(completions, answer, strict=True)]

    return design_reward


def block_is(text, expected):
    block = normalise_text(library_extract(text) or "")
    return block != "" and block == normalise_text(expected)


def called_by(order):
    """Return a function that tests a log for faults in this order."""
    questions = {
        "not finite": lambda log: any(x != x or abs(x) == math.inf for v in log.values() for x in v),
        "no spread": lambda log: set(log["zero_std"]) == {1.0},
        "sampler differs": lambda log: log["sampling_gap"][0] > 0.001,
        "not centred": lambda log: max(map(abs, log["advantage_mean"])) > 0.001,
        "weights still": lambda log: log["entropy"][0] == log["entropy"][-1],
        "old recomputed": lambda log: not any(log["ratio_gap"]),
        "reference moves": lambda log: not any(log["kl"]),
        "wrong sign": lambda log: sum(log["reward"][-8:]) < sum(log["reward"][:8]),
        "hacked": lambda log: sum(log["accuracy"][-8:]) < sum(log["accuracy"][:8]),
    }

    def name_fault(log):
        return next((fault for fault in order if questions[fault](log)), "none")

    return name_fault


SYMPTOMS = (
    "not finite", "no spread", "sampler differs", "not centred", "weights still", "old recomputed", "reference moves",
    "wrong sign", "hacked",
)  # fmt: skip


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
    *(("accuracy_reward", accuracy(clean=lambda t, c=c: t.rstrip(c)), "") for c in (".", "%", ".,;", "°")),
    *(("accuracy_reward", accuracy(clean=lambda t, c=c: t.lstrip(c)), "") for c in ("$", "+", "=", "€")),
    ("accuracy_reward", accuracy(clean=lambda t: t.lstrip("0")), ""),
    ("accuracy_reward", accuracy(clean=lambda t: str(float(t)) if t.isdigit() else t), ""),
    ("extract_answer", attributes_allowed, ""),
    ("extract_answer", blanks_allowed, ""),
    ("kl_exact", exact_without(1e-4), "small-probabilities-dropped"),
    ("kl_exact", exact_without(1e-6), ""),
    ("kl_exact", exact_clamped, ""),
    ("group_advantages", no_spread_below(1e-3), "small-spread-as-none"),
    ("group_advantages", no_spread_below(1e-5), ""),
    ("step_if_finite", skips_above(1e4), "large-norm-skipped"),
    ("step_if_finite", skips_above(1e6), "large-norm-skipped"),
    ("held_out_accuracy", accuracy_of(seed_and_eval, lambda model, mode: model.train(mode)), "seeded"),
    ("held_out_accuracy", accuracy_of(set_mode_of_top_only, set_mode_of_top_only), "top-module-only"),
    ("held_out_accuracy", accuracy_of(set_mode_of_children_only, lambda model, mode: model.train(mode)), ""),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), set_mode_of_top_only), "modules-left-in-evaluation"),
    ("held_out_accuracy", accuracy_of(without_gradients, lambda model, mode: model.train(mode)), "gradients-off"),
    ("held_out_accuracy", accuracy_of(eval_and_zero_grad, lambda model, mode: model.train(mode)), "gradients-gone"),
    ("held_out_accuracy", accuracy_of(freeze, lambda model, mode: model.train(mode)), "left-frozen"),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), unfreeze), "all-unfrozen"),
    ("sample_tokens", sampler(shift=-1), ""),
    ("sample_tokens", sampler(shift=1), ""),
    ("sample_tokens", sampler(mask_of=torch.ones_like), "padding-attended"),
    ("sample_tokens", sampler(uniform_of=lambda u: 1 - u), ""),
    ("dynamic_sampling", batch_of(lambda r: True), "all-kept"),
    ("dynamic_sampling", batch_of(lambda r: len(r) and r.sum() > 0), "all-right-kept"),
    ("dynamic_sampling", batch_of(lambda r: len(r) > 1 and bool(r.std() > 0)), ""),
    ("dynamic_sampling", batch_of(lambda r: len(r) > 1 and bool(r.std() > 0.01)), ""),
    ("dynamic_sampling", batch_of(lambda r: len(set(r.tolist())) > 1, mean_of_all=False), "mean-of-the-batch"),
    ("dynamic_sampling", batch_of(lambda r: len(set(r.tolist())) > 1, limit=False), "batch-too-large"),
    ("design_reward", reward_by(block_is), "length-for-nothing"),
    ("dynamic_sampling", batch_of(lambda r: len(set(r.tolist())) > 1, may_be_empty=False), ""),
    ("design_reward", reward_by(lambda y, a: 1.0), ""),
    ("design_reward", reward_by(lambda y, a: 0.0), ""),
    ("design_reward", reward_by(lambda y, a: -len(y)), ""),
    ("design_reward", reward_by(lambda y, a: block_is(y, a) - len(y) / 1000), "wrong-ones-pay"),
    ("design_reward", reward_by(lambda y, a: (a in y) * (1 - len(y) / 4000)), ""),
    ("design_reward", reward_by(lambda y, a: block_is(y, a) * 0.1 + ("<think>" in y) * 1.0 - len(y) / 1e5), ""),
    ("name_fault", called_by(SYMPTOMS[:-1]), "accuracy-unread"),
    ("name_fault", called_by((*SYMPTOMS[:4], *SYMPTOMS[5:], "weights still")), "stillness-asked-last"),
    ("name_fault", called_by(()), ""),
    ("name_fault", called_by(SYMPTOMS[::-1]), ""),
    ("first_step_movement", callback_that_prints_nothing, "nothing-printed"),
    ("first_step_movement", returning_nothing, "nothing-returned"),
    ("first_step_movement", lambda policy: None, "no-function"),
    ("first_step_movement", lambda policy: 0.5, "no-function"),
]


@pytest.mark.parametrize(("name", "answer", "mistake", "seed"), few_fast(WRONG, SEEDS, key=exercise_of))
def test_a_wrong_answer_is_refused_at_home_and_in_grading(name, answer, mistake, seed):
    verdict = judge(find_exercise(name), outcomes(find_exercise(name), answer, seed), seed)
    assert not verdict.right
    assert verdict.misconceptions[:1] == (mistake,) or not mistake, verdict.message
    assert verdict.points <= find_exercise(name).points / 2 or verdict.shares["values"] == 1


def first_position(logits):
    return logits[:, :1].expand_as(logits)


LOOPS = [
    (grpo_loop({"P": 16}), "P-ignored"),
    (grpo_loop({"G": 8}), "G-ignored"),
    (grpo_loop({"epsilon": 0.2}), "epsilon-ignored"),
    (grpo_loop(zero=""), "gradients-added"),
    (grpo_loop(draw=first_position), "one-position"),
    (grpo_loop(draw=lambda logits: logits[:, -1:].expand_as(logits)), ""),
    (grpo_loop(sign=1), "ascends"),
    (guess_training(sign=1), "ascends"),
    (guess_training(order=lambda secrets, G: secrets.repeat(G)), "mixed-secrets"),
    (guess_training(stop=False), "behind-the-end"),
    (guess_training(words=True), "world-trained"),
    (guess_training(centre=False), "no-centre"),
    (guess_training(greedy=True), "likeliest-guess"),
    (guess_training(zero=False), "gradients-added"),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize(("answer", "mistake"), LOOPS)
def test_a_wrong_loop_is_refused_at_home_and_in_grading_and_named_truly(answer, mistake, seed):
    verdict = judge(find_exercise(answer.__name__), outcomes(find_exercise(answer.__name__), answer, seed), seed)
    assert not verdict.right
    assert verdict.misconceptions[:1] == (mistake,) or not mistake, verdict.message


def test_a_crash_of_dynamic_sampling_on_equal_rewards_costs_a_point_and_names_the_case():
    crashes = batch_of(lambda r: len(set(r.tolist())) > 1, may_be_empty=False)
    verdict = judge(find_exercise("dynamic_sampling"), outcomes(find_exercise("dynamic_sampling"), crashes))
    assert verdict.status == "partly"
    assert verdict.points < find_exercise("dynamic_sampling").points
    assert "It raises RuntimeError: stack expects a non-empty TensorList" in verdict.message
    assert "no group teaches anything" in verdict.details


WHERE = {"the first place": "0", "the last token": "max(t - 1, 0)", "one too late": "t + 1"}
WHERE |= {f"place {column}, of the second alone": f"{column} if t else 0" for column in (0, 1, 3)}


@pytest.mark.parametrize("seed", range(4))
def test_check_rejects_a_guess_that_is_not_drawn_from_the_policy_also_if_it_is_the_second(seed):
    task = find_exercise("learn_by_playing")
    index = next(i for i, case in enumerate(task.cases) if case.label == "both guesses are certain")
    reference, subject = inspect.unwrap(task.function), "whether the guesses are drawn from the policy"
    expected = outcome_of(reference, task, index, seed)
    assert expected.results[subject] is True
    for answer in (guess_training(), *RIGHT_NB11["learn_by_playing"]):
        assert equal_outcomes(outcome_of(answer, task, index, seed), expected, task)
    for description, column in WHERE.items():
        source = source_of(reference).replace("policy(tokens)[:, t])", f"policy(tokens)[:, {column}])")
        outcome = outcome_of(function_from_source(reference, source), task, index, seed)
        assert outcome.results[subject] is False, description


RIGHT = [
    ("learn_by_grpo", grpo_loop(zero="after")),
    ("held_out_accuracy", accuracy_of(lambda model: model.eval(), lambda model, mode: model.train(mode))),
    ("step_if_finite", skips_above(math.inf)),
    ("sample_tokens", sampler()),
    ("dynamic_sampling", batch_of(lambda r: len(set(r.tolist())) > 1)),
    ("design_reward", reward_by(lambda y, a: block_is(y, a) * (len(y) < 300))),
    ("design_reward", reward_by(lambda y, a: block_is(y, a) / (1 + len(y) / 1000))),
    ("design_reward", reward_by(lambda y, a: 100 * block_is(y, a) - 50 * (len(y) > 1000))),
    ("name_fault", called_by(SYMPTOMS)),
    ("accuracy_reward", accuracy()),
]
RIGHT_SEEDS = (*SEEDS, 2, 3)
LONG_TRAINING = [("learn_by_grpo", grpo_loop()), ("learn_by_playing", guess_training())]
SLOW_RIGHT = [pytest.param(*case, seed, marks=pytest.mark.slow) for case in LONG_TRAINING for seed in RIGHT_SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answer", "seed"), [*few_fast(RIGHT, RIGHT_SEEDS, key=exercise_of), *SLOW_RIGHT])
def test_wrong_answers_are_right_once_their_mistake_is_removed(name, answer, seed):
    verdict = judge(find_exercise(name), outcomes(find_exercise(name), answer, seed), seed)
    assert verdict.right, verdict.details


def loss_times(factor):
    def policy_loss(*args, **kwargs):
        loss, metrics = find_exercise("policy_loss").function(*args, **kwargs)
        return factor * loss, metrics

    policy_loss.__signature__ = inspect.signature(find_exercise("policy_loss").function)
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
    ("design_reward", lambda completions, answer, **columns: [0.0] * len(completions), ""),
    ("name_fault", lambda log: "none", ""),
    ("dynamic_sampling", lambda sample, prompts, size: (prompts[:0], torch.zeros(0, 4), 0.0), ""),
    ("sample_tokens", lambda model, ids, mask, uniform, end, temperature=1.0, top_p=1.0: uniform.long() + end, ""),
    ("format_fault", lambda text: None, ""),
]


@pytest.mark.parametrize(("name", "answer", "words"), NOTHING)
def test_effortless_answers_earn_less_than_a_fifth_and_are_named(name, answer, words):
    verdict = judge(find_exercise(name), outcomes(find_exercise(name), answer))
    assert verdict.points < find_exercise(name).points / 5, verdict.message
    assert words in verdict.message, verdict.message
