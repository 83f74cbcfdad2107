"""The toy world of notebook 03: rewards, policy and losses against literal loops, and what the rewards reward."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import best_of_group, group_advantages
from grpo_lab.formulas import check
from grpo_lab.sorting import (
    LOSSES,
    UPDATE_WEIGHTS,
    ascending_pairs,
    exact_reward,
    hand_built_policy,
    kl_penalty,
    make_prompts,
    position_logprobs,
    repaired_reward,
    response_logprobs,
    sample_responses,
    sorting_reward,
    surrogate_loss,
    update_weights,
)
from grpo_lab.sorting import world as sorting
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, few, many, seeds


def rows(*lists):
    return torch.tensor(lists)


def numbers_of(shape, below, seed):
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


# rewards -----------------------------------------------------------------------------------------------------------


def inclusion_loop(x, y):
    return sum(any(a == b for b in y) for a in x)


def multiset_loop(x, y):
    left, found = list(y), 0
    for a in x:
        if a in left:
            left.remove(a)
            found += 1
    return found


def pairs_loop(y):
    return sum(y[t] <= y[t + 1] for t in range(len(y) - 1))


@pytest.mark.parametrize(
    ("prompt", "response", "gameable", "repaired"),
    [
        ((3, 1, 0, 2), (0, 1, 2, 3), 7, 7),
        ((3, 1, 0, 2), (7, 2, 2, 5), 3, 3),
        ((1, 1, 2), (1, 2, 2), 5, 4),
        ((1, 1, 2), (1, 1, 2), 5, 5),
        ((1, 1, 2), (9, 8, 7), 0, 0),
    ],
)
def test_the_scores_of_the_notebook(prompt, response, gameable, repaired):
    assert sorting_reward(rows(prompt), rows(response)).tolist() == [gameable]
    assert repaired_reward(rows(prompt), rows(response)).tolist() == [repaired]


@many
@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 6), seeds)
def test_rewards_are_the_loops(B, T, V, seed):
    prompts, responses = numbers_of((B, T), V, seed), numbers_of((B, T), V, seed + 1)
    x, y = prompts.tolist(), responses.tolist()
    assert ascending_pairs(responses).tolist() == [pairs_loop(y[b]) for b in range(B)]
    for reward, loop in [
        (sorting_reward, lambda b: inclusion_loop(x[b], y[b]) + pairs_loop(y[b])),
        (repaired_reward, lambda b: multiset_loop(x[b], y[b]) + pairs_loop(y[b])),
        (exact_reward, lambda b: sorted(x[b]) == y[b]),
    ]:
        rewards = reward(prompts, responses)
        assert rewards.dtype is torch.float32
        assert rewards.tolist() == [float(loop(b)) for b in range(B)]


def test_only_the_sorted_prompt_gets_the_maximum_of_the_repaired_reward():
    everything = rows(*itertools.product(range(4), repeat=3))
    for prompt in everything:
        asked = prompt.expand_as(everything)
        best = repaired_reward(asked, everything) == 5
        assert everything[best].tolist() == [sorted(prompt.tolist())]
        assert exact_reward(asked, everything).tolist() == best.float().tolist()
        games = (sorting_reward(asked, everything) == 5) & ~best
        assert games.any() == (len(set(prompt.tolist())) < 3)  # without duplicates there is nothing to game


@few
@given(st.integers(2, 5), seeds)
def test_repairing_never_adds_and_changes_nothing_without_duplicates(T, seed):
    prompts, responses = numbers_of((20, T), 6, seed), numbers_of((20, T), 6, seed + 1)
    gameable, repaired = sorting_reward(prompts, responses), repaired_reward(prompts, responses)
    assert (repaired <= gameable).all()
    distinct = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(seed + i))[:T] for i in range(9)])
    assert torch.equal(sorting_reward(distinct, responses[:9]), repaired_reward(distinct, responses[:9]))


@pytest.mark.parametrize("reward", [sorting_reward, repaired_reward, exact_reward])
def test_responses_of_another_length_are_an_error(reward):
    with pytest.raises(ValueError, match=r"responses has shape \(1, 2\)"):
        inspect.unwrap(reward)(rows((1, 2, 3)), rows((1, 2)))


# prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("duplicates", "count"), [("none", 60), ("only", 65), ("any", 125)])
def test_prompts_are_all_there_and_split_by_what_they_contain(duplicates, count):
    prompts = make_prompts(numbers=5, length=3, duplicates=duplicates, held_out=0.3)
    train, held_out = ([tuple(p) for p in part.tolist()] for part in prompts[:2])
    assert prompts.numbers == 5
    assert len(set(train + held_out)) == len(train + held_out) == count
    assert {tuple(sorted(p)) for p in train}.isdisjoint(tuple(sorted(p)) for p in held_out)
    wanted = {"none": {3}, "only": {1, 2}, "any": {1, 2, 3}}[duplicates]
    assert {len(set(p)) for p in train + held_out} == wanted
    contents = {tuple(sorted(p)) for p in train + held_out}
    assert len({tuple(sorted(p)) for p in held_out}) == round(0.3 * len(contents))


def test_the_split_follows_its_seed():
    one, same, other = (make_prompts(6, 3, seed=s).held_out for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"duplicates": "some"}, "duplicates is 'some'"),
        ({"length": 1}, "length is 1"),
        ({"held_out": 0.0}, "held_out 0.0"),
        ({"held_out": 1.0}, "held_out 1.0"),
        ({"numbers": 3, "length": 4}, "of 0 multisets"),
        ({"numbers": 4, "length": 4}, "of 1 multisets"),
    ],
)
def test_impossible_prompts_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        make_prompts(**arguments)


# policy ------------------------------------------------------------------------------------------------------------


def weights_of(S, T, V, D, seed):
    return draw(S, V, D, seed=seed), draw(S, T, D, D, seed=seed + 1), draw(S, T, D, D, seed=seed + 2)


def policy_loop(prompts, embedding, encode, decode):
    S, P, T = prompts.shape
    _, V, D = embedding.shape
    answer = []
    for s, p in itertools.product(range(S), range(P)):
        hidden = [
            oracles.total(embedding[s, prompts[s, p, t], i] * encode[s, t, i, j] for t in range(T) for i in range(D))
            for j in range(D)
        ]
        for t in range(T):
            out = [oracles.total(hidden[j] * decode[s, t, j, i] for j in range(D)) for i in range(D)]
            logits = [oracles.total(out[i] * embedding[s, v, i] for i in range(D)) for v in range(V)]
            answer.append(oracles.log_softmax(logits))
    return oracles.table(answer).reshape(S, P, T, V)


@pytest.mark.parametrize("shape", [(1, 1, 2, 2, 1), (2, 3, 3, 4, 2), (3, 2, 2, 3, 4)])
def test_the_policy_is_the_loop_in_value_and_gradient(shape):
    S, P, T, V, D = shape
    prompts = numbers_of((S, P, T), V, seed=3)
    assert_agree(
        lambda *w: position_logprobs(prompts, *w),
        lambda *w: policy_loop(prompts, *w),
        *weights_of(S, T, V, D, seed=0),
    )


def test_no_seed_touches_another():
    embedding, encode, decode = (w.requires_grad_() for w in weights_of(3, 2, 4, 3, seed=5))
    position_logprobs(numbers_of((3, 5, 2), 4, seed=1), embedding, encode, decode)[1, ..., 0].sum().backward()
    for weight in (embedding, encode, decode):
        assert [bool(g.any()) for g in weight.grad] == [False, True, False]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_unknown_number_is_an_error(wrong):
    with pytest.raises(ValueError, match=f"prompts holds numbers from .*{wrong}"):
        position_logprobs(torch.tensor([[[1, wrong]]]), *weights_of(1, 2, 4, 3, seed=0))


def test_samples_have_the_probabilities_of_the_policy():
    logp = torch.tensor([[[[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]]]], dtype=torch.float64).log()  # S P T V
    uniform = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    drawn = sample_responses(logp, uniform.reshape(1, 1, 8, 1).expand(-1, -1, -1, 2))
    assert drawn[0, 0].T.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 2, 2, 2, 2, 2, 2]]
    edge = logp.exp()[..., 0][:, :, None]  # a draw of exactly F belongs to the next number
    assert sample_responses(logp, edge).flatten().tolist() == [1, 1]


def test_what_is_impossible_is_never_drawn_and_rounding_never_leaves_the_numbers():
    logp = torch.tensor([0.0, 0.3, 0.7, 0.0]).log().reshape(1, 1, 1, 4)
    ends = torch.tensor([0.0, 0.999999]).reshape(1, 1, 2, 1)
    assert sample_responses(logp, ends).flatten().tolist() == [1, 2]
    short = torch.tensor([0.3, 0.3]).log().reshape(1, 1, 1, 2)  # as if rounding had eaten the rest
    assert sample_responses(short, ends).flatten().tolist() == [0, 1]


@few
@given(st.tuples(*[st.integers(1, 3)] * 5), seeds)
def test_every_prompt_and_seed_draws_from_its_own_row(shape, seed):
    S, P, G, T, V = shape
    logp = draw(S, P, T, V, seed=seed).log_softmax(-1)
    uniform = torch.rand((S, P, G, T), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn = sample_responses(logp, uniform)
    for s, p, i, t in itertools.product(range(S), range(P), range(G), range(T)):
        left, v = uniform[s, p, i, t].item(), 0
        while v < V - 1 and left >= math.exp(logp[s, p, t, v]):
            left -= math.exp(logp[s, p, t, v])
            v += 1
        assert drawn[s, p, i, t] == v


@few
@given(st.tuples(*[st.integers(1, 3)] * 5), seeds)
def test_response_logprobs_are_the_loop_in_value_and_gradient(shape, seed):
    S, P, G, T, V = shape
    responses = numbers_of((S, P, G, T), V, seed)
    assert_agree(
        lambda logp: response_logprobs(logp, responses),
        lambda logp: oracles.table(
            [
                [[[logp[s, p, t, responses[s, p, i, t]] for t in range(T)] for i in range(G)] for p in range(P)]
                for s in range(S)
            ]
        ),
        draw(S, P, T, V, seed=seed),
    )


@pytest.mark.parametrize(("numbers", "length"), [(2, 2), (4, 3), (10, 4)])
def test_the_hand_built_policy_sorts_everything(numbers, length):
    everything = torch.cartesian_prod(*[torch.arange(numbers)] * length)
    logp = position_logprobs(everything[None], *hand_built_policy(numbers, length))
    assert torch.equal(logp.argmax(-1)[0], everything.sort(-1).values)
    assert logp.amax(-1).exp().min() > 0.99


def test_the_hand_built_policy_scores_by_the_quantile_loss():
    (embedding, encode, decode), c = hand_built_policy(4, 3, sharpness=2.0), 2.0
    assert torch.equal(embedding[0], torch.eye(4))
    assert torch.equal(encode[0], torch.eye(4).expand(3, 4, 4))
    for t, x, v in itertools.product(range(3), range(4), range(4)):
        tau = (t + 0.5) / 3
        loss = tau * (x - v) if x > v else (1 - tau) * (v - x)
        assert decode[0, t, x, v].item() == pytest.approx(-c * loss, abs=1e-6)


def test_a_copy_is_frozen_and_stands_alone():
    policy = sorting.SortingPolicy(*(w.requires_grad_() for w in weights_of(1, 2, 3, 2, seed=0)))
    copy = policy.copy()
    with torch.no_grad():
        policy.embedding.add_(1)
    assert not any(w.requires_grad for w in copy)
    assert_near(copy.embedding + 1, policy.embedding.detach())


# update weights and losses -----------------------------------------------------------------------------------------


def test_update_weights_are_those_of_advantages():
    rewards = numbers_of((4, 5), 8, seed=2).float()
    rewards[0] = 3
    want = [rewards, group_advantages(rewards, scale="none"), group_advantages(rewards), best_of_group(rewards)]
    for mode, expected in zip(UPDATE_WEIGHTS, want, strict=True):
        assert torch.equal(update_weights(rewards, mode), expected)
    with pytest.raises(ValueError, match="mode is 'median'"):
        update_weights(rewards, "median")


def loss_loop(logp, old_logp, advantages, loss, epsilon):
    B, T = logp.shape
    terms = []
    for b, t in itertools.product(range(B), range(T)):
        ratio = torch.exp(logp[b, t] - old_logp[b, t].detach())
        if loss == "naive":
            terms.append(logp[b, t] * advantages[b].detach())
        elif loss == "unclipped":
            terms.append(ratio * advantages[b])
        else:
            terms.append(oracles.surrogate_term(ratio, advantages[b], epsilon, epsilon, None))
    return -oracles.total(terms) / (B * T)


@pytest.mark.parametrize("loss", LOSSES)
@few
@given(B=st.integers(1, 4), T=st.integers(1, 4), seed=seeds, epsilon=st.sampled_from([0.1, 0.2, 0.5]))
def test_losses_are_the_loops_in_value_and_gradient(loss, B, T, seed, epsilon):
    old, advantages = -draw(B, T, seed=seed).abs(), draw(B, seed=seed + 2)
    logp = old + draw(B, T, seed=seed + 1, scale=0.4)
    assert_agree(
        lambda x: surrogate_loss(x, old, advantages, loss, epsilon),
        lambda x: loss_loop(x, old, advantages, loss, epsilon),
        logp,
    )


def test_the_three_losses_start_with_the_same_gradient():
    logp, advantages = -draw(6, 3, seed=0).abs(), draw(6, seed=1)
    gradients = []
    for loss in LOSSES:
        x = logp.clone().requires_grad_()
        surrogate_loss(x, logp, advantages, loss).backward()
        gradients.append(x.grad)
    assert_near(gradients[1], gradients[0])
    assert_near(gradients[2], gradients[0])


def test_an_unknown_loss_is_an_error():
    logp = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="loss is 'mse'; allowed are 'naive', 'unclipped', 'clipped'"):
        surrogate_loss(logp, logp, torch.zeros(2), "mse")


@few
@given(B=st.integers(1, 4), T=st.integers(1, 4), seed=seeds, beta=st.sampled_from([0.0, 0.3, 2.0]))
def test_the_kl_penalty_is_the_loop_in_value_and_gradient(B, T, seed, beta):
    ref = -draw(B, T, seed=seed).abs()

    def loop(x):
        terms = [oracles.kl_term(x[b, t], ref[b, t], "k3") for b in range(B) for t in range(T)]
        return beta * oracles.total(terms) / (B * T)

    assert_agree(lambda x: kl_penalty(x, ref, beta), loop, ref + draw(B, T, seed=seed + 1, scale=0.5))


def test_a_negative_beta_is_an_error():
    with pytest.raises(ValueError, match="beta is -0.1"):
        kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), -0.1)


# formulas ----------------------------------------------------------------------------------------------------------


def test_every_equation_has_its_line():
    functions = [f for _, f in inspect.getmembers(sorting, inspect.isfunction) if f.__module__ == sorting.__name__]
    for function in functions:
        check(function)
