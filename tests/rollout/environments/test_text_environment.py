"""Episodes: the masks of the policy's and the environment's tokens, and ids that stay as they were sampled."""

import pytest
import torch

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.objective import policy_loss
from grpo_lab.rollout import end_token_ids, sample_episodes
from grpo_lab.rollout.decoding.sampling_request import EpisodeTokens, StopStrings
from grpo_lab.rollout.environments.environment import encode_reply
from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.trainer.collecting import make_experience
from grpo_lab.trainer.experience import completion_logprobs, logprobs_without_gradient
from grpo_lab.trainer.metrics import rollout_metrics
from tests.support.fake_cuda_graph import capture_on_the_cpu
from tests.support.few_fast import few_fast
from tests.support.sampling import PROMPTS, logprobs_of, next_logits, sample, tokens_of
from tests.support.small_policy import END, make_config, make_exact, make_policy
from tests.support.text_episodes import STOP_STRINGS, reply_by_length

G, T = 8, 24
WAYS = [None, "dynamic"]


def episodes(
    model, tokenizer, respond=reply_by_length, seed=0, stop_strings=STOP_STRINGS, length=T, generations=G, **settings
):
    torch.manual_seed(seed)
    keywords = {"stop_strings": stop_strings, **settings}
    return sample_episodes(model, tokenizer, PROMPTS, generations, length, respond, **keywords)


def literal(model, tokenizer, rollout, row, respond, stop_strings, limit, max_turns=None):
    """Walk through a row token by token: who has to write each token, in which turn, and where the episode ends."""
    ids, ends = tokens_of(rollout, row)[1], end_token_ids(model, tokenizer)
    policy, turn, number, start, queue, truncated, over = [], [], 0, 0, [], False, False
    for position, token in enumerate(ids):
        assert not over, "nothing is written after the end"
        policy.append(not queue)
        turn.append(number)
        if queue:
            assert token == queue.pop(0), "the environment's ids, as it encodes them alone"
            if not queue:
                number, start = number + 1, position + 1
        else:
            text = tokenizer.decode(ids[start : position + 1])
            if any(stop in text for stop in stop_strings):
                written = ids[: position + 1]
                if number + 1 == max_turns:
                    over, truncated = True, token not in ends
                    continue
                (reply,) = respond([tokenizer.decode(written, skip_special_tokens=True)])
                queue = [] if reply is None else tokenizer(reply, add_special_tokens=False)["input_ids"]
                if reply is None:
                    over = True
                elif position + 1 + len(queue) > limit:
                    over = truncated = True
                elif not queue:
                    number, start = number + 1, position + 1
            elif token in ends:
                over = True
        if not over and position + 1 == limit:
            over = truncated = True
    assert over and not (queue and not truncated)
    return policy, turn, truncated


@pytest.mark.parametrize(("max_turns", "way"), few_fast([(None,), (1,), (2,)], WAYS))
def test_an_episode_rollout_equals_a_literal_walk_over_its_tokens(way, max_turns):
    model, tokenizer = make_policy()
    rollout = episodes(model, tokenizer, cache_implementation=way, max_turns=max_turns, generations=4 * G)
    for row in range(len(rollout.mask)):
        policy, turn, truncated = literal(model, tokenizer, rollout, row, reply_by_length, STOP_STRINGS, T, max_turns)
        length = len(policy)
        assert rollout.mask[row].tolist() == [t < length for t in range(rollout.mask.shape[1])]
        assert rollout.policy_mask[row, :length].tolist() == policy and not rollout.policy_mask[row, length:].any()
        assert rollout.turn_of_token[row, :length].tolist() == turn
        assert (rollout.turn_of_token[row, length:] == -1).all()
        assert rollout.truncated[row].item() is truncated
        assert (rollout.completion_ids[row, length:] == tokenizer.pad_token_id).all()
        assert rollout.texts[row] == tokenizer.decode(tokens_of(rollout, row)[1], skip_special_tokens=True)
        assert rollout.episodes[row].num_calls == len(
            set(rollout.turn_of_token[row][rollout.mask[row] & ~rollout.policy_mask[row]].tolist())
        )
    if max_turns is None:
        assert rollout.turn_of_token.max() >= 3 and rollout.truncated.any() and not rollout.truncated.all()
        assert (rollout.mask & ~rollout.policy_mask).any()
        assert (rollout.mask.sum(-1) < T)[rollout.truncated].any(), "a reply that has no room is left out"
    else:
        assert rollout.turn_of_token.max() == max_turns - 1


@pytest.mark.parametrize(
    ("temperature", "path", "way"),
    few_fast([(0.7, "packed"), (0.7, "plain"), (1.0, "plain"), (1.0, "packed")], WAYS),
)
def test_the_sampler_and_compute_logprobs_agree_in_every_turn(temperature, way, path, monkeypatch):
    model, tokenizer = make_policy()
    if path == "plain":
        monkeypatch.setattr(model_logprobs, "has_fast_path", lambda model: False)
    rollout = episodes(model, tokenizer, temperature=temperature, cache_implementation=way)
    logp, entropy = logprobs_of(model, rollout, temperature=temperature, policy_mask=rollout.policy_mask)
    for turn in range(rollout.turn_of_token.max() + 1):
        tokens = rollout.policy_mask & (rollout.turn_of_token == turn)
        assert (logp - rollout.logp)[tokens].abs().max() < 1e-4, turn
        assert (entropy - rollout.entropy)[tokens].abs().max() < 1e-4, turn
    assert (rollout.logp[~rollout.policy_mask] == 0).all() and (rollout.entropy[~rollout.policy_mask] == 0).all()


@pytest.mark.parametrize("way", WAYS)
def test_each_token_has_the_probability_of_its_row_read_alone_from_the_beginning(way):
    """Without cache, padding and other rows: the positions of a row have no gap, whoever wrote its tokens."""
    model, tokenizer = make_policy()
    rollout = episodes(model, tokenizer, cache_implementation=way)
    for row in range(0, len(rollout.mask), 5):
        prompt, completion = tokens_of(rollout, row)
        for t in rollout.policy_mask[row].nonzero()[:, 0].tolist():
            expected = next_logits(model, prompt + completion[:t]).log_softmax(-1)[completion[t]]
            assert abs(expected - rollout.logp[row, t]) < 1e-4


def test_without_an_environment_an_episode_is_a_completion():
    """Both functions draw the same tokens, bit for bit."""
    model, tokenizer = make_policy()
    for way in WAYS:
        by_sample = sample(model, tokenizer, cache_implementation=way)
        by_episodes = episodes(
            model, tokenizer, lambda texts: [None] * len(texts), stop_strings=(), length=6, generations=5,
            cache_implementation=way,
        )  # fmt: skip
        for name in ("mask", "policy_mask", "turn_of_token", "logp", "entropy", "truncated"):
            assert torch.equal(getattr(by_sample, name), getattr(by_episodes, name)), name
        assert by_sample.texts == by_episodes.texts
        assert torch.equal(by_sample.completion_ids[by_sample.mask], by_episodes.completion_ids[by_sample.mask])
        assert torch.equal(by_sample.policy_mask, by_sample.mask)
        assert torch.equal(by_sample.turn_of_token, by_sample.mask.long() - 1)


def test_reply_to_one_row_changes_no_other_row():
    model, tokenizer = make_policy()

    def other_replies(texts):
        return ["cc" if "a" in text else "=0" for text in texts]

    first, second = episodes(model, tokenizer), episodes(model, tokenizer, other_replies)
    changed = [a != b for a, b in zip(first.texts, second.texts, strict=True)]
    alone = [row for row in range(len(first.mask)) if first.turn_of_token[row].max() == 0]
    assert any(changed) and alone
    for row in alone:  # rows without a reply, or whose episode the environment ended
        length = min(first.mask[row].sum(), second.mask[row].sum())
        assert torch.equal(first.completion_ids[row, :length], second.completion_ids[row, :length])


def test_a_captured_step_draws_what_generate_draws(monkeypatch):
    """A captured step reads the ids of replies from fixed memory, and draws the tokens of `generate`."""
    tapes = capture_on_the_cpu(monkeypatch)
    policy = make_policy()
    expected, rollout = episodes(*policy, cache_implementation="dynamic"), episodes(*policy)
    assert len(tapes) == 1 and (rollout.mask & ~rollout.policy_mask).any()
    for name in ("completion_ids", "mask", "policy_mask", "turn_of_token", "truncated"):
        assert torch.equal(getattr(rollout, name), getattr(expected, name)), name
    assert (rollout.logp - expected.logp).abs().max() < 1e-5


def test_an_environment_may_write_tokens_of_probability_zero(monkeypatch):
    """With top_k = 1 most tokens of a reply have probability 0, which must not be reported as a broken model."""
    model, tokenizer = make_policy()
    for way in WAYS:
        rollout = episodes(model, tokenizer, top_k=1, cache_implementation=way)
        assert (rollout.mask & ~rollout.policy_mask).any() and rollout.logp.isfinite().all()


# The loss: tokens of the environment do not enter it.


def experience_of(rollout, **settings):
    rewards = torch.randn(len(rollout.mask), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    config = make_config(num_generations=G, generation_batch_size=len(rewards), max_completion_length=T, **settings)
    return make_experience(rollout, rewards, config), config


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.1}, {"mask_truncated_completions": True}])
def test_environment_tokens_have_no_gradient(settings):
    """Any logits at the environment's tokens give the same loss, and its gradient at these logits is exactly zero."""
    model, tokenizer = make_policy()
    rollout = episodes(model, tokenizer)
    experience, config = experience_of(rollout, **settings)
    theirs = rollout.mask & ~rollout.policy_mask
    assert theirs.any() and not (experience.loss_mask & theirs).any()
    logits = torch.randn(*rollout.mask.shape, len(tokenizer), requires_grad=True)
    changed = torch.where(theirs[..., None], 7 * torch.randn_like(logits), logits)

    def loss(values):
        logp = values.log_softmax(-1).gather(-1, rollout.completion_ids[..., None])[..., 0]
        old = logp.detach() + 0.1 * rollout.logp
        keywords = {**config.loss_arguments(), "beta": 0.1}
        return policy_loss(logp, experience.advantages, experience.loss_mask, old, rollout.logp, **keywords)[0]

    assert torch.equal(loss(logits), loss(changed))
    (gradient,) = torch.autograd.grad(loss(logits), logits)
    assert (gradient[~experience.loss_mask] == 0).all() and (gradient[experience.loss_mask] != 0).any()


@pytest.mark.parametrize("path", ["packed", "plain"])
def test_environment_tokens_give_the_models_logits_no_gradient(path, monkeypatch):
    """With the trainer's log-probabilities. Only one row has an advantage, so the head gets only its tokens."""
    model, tokenizer = make_policy()
    if path == "plain":
        for module in ("grpo_lab.rollout.forward.model_logprobs", "grpo_lab.trainer.experience"):
            monkeypatch.setattr(f"{module}.has_fast_path", lambda model: False)
    rollout = episodes(model, tokenizer)
    experience, config = experience_of(rollout)
    heads = []
    model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: (output.retain_grad() if output.requires_grad else None, heads.append(output))[1]
    )
    logp, _ = completion_logprobs(model, experience, config)
    torch.where(experience.loss_mask, logp, 0).sum().backward()
    (logits,) = heads
    if path == "packed":  # this path computes logits only for the policy's tokens
        assert len(logits[0]) <= rollout.policy_mask.sum() < rollout.mask.sum()
    else:
        lengths = rollout.prompt_mask[rollout.prompt_of_row].sum(-1)
        for row in range(len(rollout.mask)):
            gradient = logits.grad[row, lengths[row] - 1 :][: rollout.mask.shape[1]].abs().sum(-1)
            expected = rollout.policy_mask[row, : len(gradient)]
            assert torch.equal(gradient > 0, expected), row


def test_packed_and_plain_logprobs_of_episodes_have_the_same_gradient(monkeypatch):
    """In float64: the packed path, which has no logits for the environment, and the model's own forward pass."""
    model, tokenizer = make_policy()
    make_exact(model)
    rollout = episodes(model, tokenizer)
    gradients = []
    for fast in (True, False):
        monkeypatch.setattr(model_logprobs, "has_fast_path", lambda model, fast=fast: fast)
        logp, entropy = logprobs_of(model, rollout, policy_mask=rollout.policy_mask)
        loss = torch.where(rollout.policy_mask, logp * rollout.turn_of_token.sin() + entropy * 0.3, 0).sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for packed_gradient, plain_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(packed_gradient, plain_gradient, rtol=1e-10, atol=1e-12)


def test_lengths_entropy_and_tokens_count_only_tokens_of_the_policy():
    model, tokenizer = make_policy()
    rollout = episodes(model, tokenizer)
    metrics = rollout_metrics(rollout, seconds=2.0)
    lengths = rollout.policy_mask.sum(-1).float()
    assert metrics["completions/mean_length"] == lengths.mean() < rollout.mask.sum(-1).float().mean()
    assert metrics["completions/max_length"] == lengths.max()
    assert metrics["entropy"] == pytest.approx(rollout.entropy[rollout.policy_mask].mean().item())
    assert metrics["tokens_per_second"] == lengths.sum() / 2
    assert metrics["completions/clipped_ratio"] == pytest.approx(rollout.truncated.float().mean().item())


def test_rows_can_be_cut_out_and_scored_as_they_were():
    model, tokenizer = make_policy()
    rollout = episodes(model, tokenizer)
    experience, config = experience_of(rollout)
    rows = torch.tensor([5, 0, 17])
    cut = logprobs_without_gradient(model, experience[rows], config)
    difference = (cut - logprobs_without_gradient(model, experience, config)[rows])[experience.loss_mask[rows]]
    assert difference.abs().max() < 1e-5
    assert torch.equal(experience[rows].rollout.turn_of_token, rollout.turn_of_token[rows])


# Stop strings.


@pytest.mark.parametrize(
    ("stop", "pieces", "ends_at"),
    [
        ("b+c", ["a", "b", "+", "c", "0"], 3),  # the tokenizer splits the stop string
        ("a", ["0", "ab", "c"], 1),  # the stop string is a part of a token, which stays whole
        ("bc", ["ab", "cd", "="], 1),  # the stop string begins and ends within a token
        ("ab", ["a", "b", "="], 1),  # sampled as two tokens, though encoded as one
        (END, ["a", END, "="], 1),  # the stop string is a special token
        ("0=", ["=", "0", "0"], None),
    ],
)
def test_a_turn_ends_with_the_token_that_completes_a_stop_string(stop, pieces, ends_at):
    _, tokenizer = make_policy()
    ids, stops = tokenizer.convert_tokens_to_ids(pieces), StopStrings(tokenizer, [stop, "????"])
    first_end = next((index for index in range(len(ids)) if stops.completed_by(ids[: index + 1])), None)
    assert first_end == ends_at
    tokens = EpisodeTokens(1, 9, [], stops, lambda turns: [encode_reply(tokenizer, "1")])
    for token in ids[: len(ids) if ends_at is None else ends_at + 1]:
        tokens.append([0], [token])
    assert tokens.ids[0] == ids[: len(tokens.ids[0])], "as sampled"
    assert tokens.next_forced_tokens() == ([-1] if ends_at is None else tokenizer.convert_tokens_to_ids(["1"]))


def test_a_stop_string_counts_in_what_the_policy_wrote_in_this_turn():
    """A stop string that begins in the environment's text, or in an earlier turn, does not count."""
    _, tokenizer = make_policy()
    seen_turns = []

    def reply(turns):
        seen_turns.extend(tokenizer.decode(turn.ids) for turn in turns)
        return [encode_reply(tokenizer, "b=") for _ in turns]

    tokens = EpisodeTokens(1, 12, [], StopStrings(tokenizer, ["="]), reply)
    for token in tokenizer.convert_tokens_to_ids(["a", "=", "0", "0", "f", "=", "0", "0", "e"]):
        tokens.append([0], [token])
    assert seen_turns == ["a=", "f="]
    assert tokenizer.decode(tokens.ids[0]) == "a=b=f=b=e"
    assert tokens.is_policy[0] == [True, True, False, False, True, True, False, False, True]
    assert tokens.turn_of_token[0] == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_a_stop_string_split_over_several_tokens_is_recognised(tiny):
    """The tokenizer of the package encodes a Chinese character as bytes."""
    _, tokenizer = tiny
    ids = tokenizer("1+2。", add_special_tokens=False)["input_ids"]
    assert len(tokenizer("。", add_special_tokens=False)["input_ids"]) > 1
    stops = StopStrings(tokenizer, ["。"])
    assert [stops.completed_by(ids[: n + 1]) for n in range(len(ids))] == [False] * (len(ids) - 1) + [True]


@pytest.mark.parametrize("reply_length", [3, 4])
def test_a_reply_is_appended_whole_or_not_at_all(reply_length):
    _, tokenizer = make_policy()
    (a,) = tokenizer.convert_tokens_to_ids(["a"])
    tokens = EpisodeTokens(1, 5, [], StopStrings(tokenizer, ["b"]), lambda turns: [[a] * reply_length])
    for token in tokenizer.convert_tokens_to_ids(["0", "b", "0", "0", "0"]):
        tokens.append([0], [token])
    assert tokens.done == tokens.truncated == [True]
    assert len(tokens.ids[0]) == (5 if reply_length == 3 else 2)


# Wrong input.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop_strings": "="}, "stop_strings is '='; expected a list of texts"),
        ({"stop_strings": [""]}, "expected a list of texts, none of them empty"),
        ({"max_turns": 0}, "max_turns is 0; it must be at least 1"),
        ({"respond": lambda texts: None}, "respond returned None; expected a list of"),
        ({"respond": lambda texts: ["a"] * 99}, "respond returned 99 replies; expected a list of"),
        ({"respond": lambda texts: [7] * len(texts)}, "respond returned 7; expected a text, or None"),
        ({"length": 200}, "the model's context"),
    ],
)
def test_text_environment_refuses_wrong_input_by_name(settings, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        episodes(*make_policy(), **settings)


def test_an_error_inside_a_text_environment_is_a_run_error_that_quotes_it():
    def respond(texts):
        raise KeyError("secret")

    with pytest.raises(RunError, match="respond failed: KeyError: 'secret'"):
        episodes(*make_policy(), respond)
