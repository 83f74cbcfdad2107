"""The exercises of notebook 11."""

import json
import re

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Categorical

from grpo_lab.advantages import group_advantages, trajectory_advantages, turn_advantages
from grpo_lab.course.exercise import NAN, Case, Draws, Exercise, at_scale, drawn, extreme, f64, given
from grpo_lab.course.exercises.nb03 import Watch
from grpo_lab.course.exercises.nb07 import TinyTokenizer
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import policy_loss
from grpo_lab.toys.guess import GuessPolicy, GuessWorld, win_probability

PAD = 0


def episode_masks(
    turns: list[list[tuple[str, list[int]]]], pad_token_id: int
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Put episodes into one batch, and say which tokens exist and which the policy wrote.

    Args:
        turns: of each episode, in order, who wrote, "policy" or "environment", and the token ids; a turn may be empty.
            An episode may be empty, too; at least one has a token.
        pad_token_id: what stands behind an episode that is shorter than the longest. It may be an id that was sampled.

    Returns:
        The ids; a mask that is True where a token exists; and one that is True where the policy wrote it: the first
        mask is for attention and positions, the second for the loss.
    """
    rows = [[(token, who == "policy") for who, ids in episode for token in ids] for episode in turns]
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad_token_id)
    exists, is_policy = (torch.zeros(len(rows), length, dtype=torch.bool) for _ in range(2))
    for b, row in enumerate(rows):
        for t, (token, wrote) in enumerate(row):
            ids[b, t] = token
            exists[b, t] = True  # [exists]
            is_policy[b, t] = wrote  # [wrote]
    return ids, exists, is_policy


def append_reply(ids: list[int], mask: list[bool], reply: str, tokenizer) -> tuple[list[int], list[bool]]:
    """Append what the environment says to an episode: token in, token out.

    Args:
        ids: of the episode so far, as they were sampled. mask: of each, whether the policy wrote it.
        reply: the environment's text, which may be empty.
        tokenizer: with `encode(text, add_special_tokens=True)` and `decode(ids)`, as transformers' tokenizers have.
            With special tokens, it begins with one that says: here a text begins.

    Returns:
        New lists; those that were given stay as they are. The ids that were there are there, whatever the tokenizer
        would make of their text.
    """
    reply_ids = tokenizer.encode(reply, add_special_tokens=False)
    return ids + reply_ids, mask + [False] * len(reply_ids)  # [appended]


def read_tool_calls(text: str) -> list[dict]:
    """Read the tool calls that a model wrote, and never raise an error over what it wrote.

    A call stands between <tool_call> and </tool_call>, as JSON with a "name" and "arguments":
    <tool_call>{"name": "add", "arguments": {"a": 17, "b": 58}}</tool_call>. One that is not closed is no call yet.

    Returns:
        In the order of the text, one dict for each call: its "name", a string, and its "arguments", a dict, which is
        empty where none are given; other fields are left out. For a call that is no such JSON, {"error": what stands
        between the two tags}, so that the model can be told what it wrote.
    """
    calls = []
    for content in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        try:
            call = json.loads(content)
            name, arguments = call["name"], call.get("arguments", {})
            well = isinstance(name, str) and isinstance(arguments, dict)
        except (ValueError, TypeError, KeyError, AttributeError):
            well = False
        calls.append({"name": name, "arguments": arguments} if well else {"error": content})  # [read]
    return calls


def turns(*episodes: str) -> list[list[tuple[str, list[int]]]]:
    """Episodes from texts such as "P 3 4 E 5": tokens of the policy and of the environment."""
    who = {"P": "policy", "E": "environment"}
    return [
        [(who[turn[0]], [int(token) for token in turn[1:].split()]) for turn in re.findall("[PE][ 0-9]*", text)]
        for text in episodes
    ]


def _many_turns(d: Draws, B: int, K: int, below: int) -> tuple:
    def tokens():
        return d.integers(50, int(d.integers(below, 1))).tolist()

    episodes = [
        [(("policy", "environment")[k % 2], tokens()) for k in range(1 + int(d.integers(K, 1)))] for _ in range(B)
    ]
    return [[("policy", [7, 8, 9])], *episodes], PAD


def padded_in_front(turns, pad_token_id):
    ids, exists, is_policy = episode_masks(turns, pad_token_id)
    ends = [row.roll(int((~there).sum())) for row, there in zip(ids, exists, strict=True)]
    masks = [[row.roll(int((~row_exists).sum())) for row, row_exists in zip(mask, exists, strict=True)]
             for mask in (exists, is_policy)]  # fmt: skip
    return torch.stack(ends), *map(torch.stack, masks)


def padding_as_the_policys(turns, pad_token_id):
    ids, exists, is_policy = episode_masks(turns, pad_token_id)
    return ids, exists, is_policy | ~exists


EPISODE_MASKS = Exercise(
    function=episode_masks,
    cases=(
        given("the policy, the environment, the policy", turns("P 3 4 E 5 6 P 7"), PAD),
        given("two episodes, one shorter", turns("P 3 E 4 P 5", "P 6"), PAD),
        given("the environment speaks last", turns("P 3 4 E 5", "P 6 E 7 8 9"), PAD),
        given("padding that was sampled", turns("P 3 0 E 0 P 0", "P 4"), PAD),
        given("the environment begins", turns("E 3 P 4", "P 5 6 7"), PAD),
        given("the environment says nothing", turns("P 3 E P 4", "P 5 E 6 P 7"), PAD),
        given("an empty episode", turns("", "P 3 E 4"), PAD),
        given("another padding", turns("P 3", "P 4 5"), 9),
        drawn("several episodes", lambda d: _many_turns(d, 5, 4, 4)),
        at_scale("many long episodes", lambda d: _many_turns(d, 12, 9, 12)),
    ),
    mistakes={
        "replies-pushed": {"[wrote]": "is_policy[b, t] = True"},
        "replies-do-not-exist": {"[exists]": "exists[b, t] = wrote"},
        "masks-swapped": {"[exists]": "exists[b, t] = wrote", "[wrote]": "is_policy[b, t] = True"},
        "padding-by-its-id": {
            "[exists]": "exists[b, t] = token != pad_token_id",
            "[wrote]": "is_policy[b, t] = wrote and token != pad_token_id",
        },
        "exists-by-its-id": {"[exists]": "exists[b, t] = token != pad_token_id"},
        "environment-marked": {"[wrote]": "is_policy[b, t] = not wrote"},
        "padded-in-front": padded_in_front,
        "padding-as-the-policys": padding_as_the_policys,
        "only-the-first-turn": {"[wrote]": "is_policy[b, t] = all(before for _, before in row[: t + 1])"},
    },
)


class AgentTokenizer(TinyTokenizer):
    """The tokenizer of eight tokens, with one that begins a text."""

    def encode(self, text: str, add_special_tokens: bool = True, **ignored) -> list[int]:
        return [2] * add_special_tokens + super().encode(text)


def encoded_again(ids, mask, reply, tokenizer):
    again = tokenizer.encode(tokenizer.decode(ids) + reply, add_special_tokens=False)
    return again, (mask + [False] * len(again))[: len(again)]


def grown(label: str, ids: list[int], reply: str, mask: list[bool] | None = None):
    return given(label, ids, mask or [True] * len(ids), reply, AgentTokenizer())


def _episode(d: Draws, length: int) -> tuple:
    pieces = ["a", "b", " ", "ab", "<think>"]
    reply = "".join(pieces[i] for i in d.integers(5, length).tolist())
    ids = (3 + d.integers(5, length)).tolist()
    return ids, d.integers(2, length).bool().tolist(), reply, AgentTokenizer()


def after_appending(result, args, kwargs):
    """Observe what is returned, and what has become of the lists that were given."""
    return {
        "the ids": list(result[0]),
        "the mask": [bool(mask) for mask in result[1]],
        "the ids that were given, afterwards": list(args[0]),
        "the mask that was given, afterwards": list(args[1]),
    }


APPEND_REPLY = Exercise(
    function=append_reply,
    cases=(
        grown("the policy wrote 'a ', the environment says 'b'", [3, 6], "b"),
        grown("the policy sampled 'a' and 'b', which read as 'ab'", [3, 4], "a"),
        grown("the reply goes on with the policy's word", [6, 3], "b b"),
        grown("a second reply", [3, 4, 6, 3, 4], "ab", [True, True, False, True, True]),
        grown("the environment says nothing", [3, 4], ""),
        grown("nothing is written yet", [], "ab a"),
        grown("the reply begins and ends with a blank", [3, 4], " a "),
        drawn("a longer episode", lambda d: _episode(d, 9)),
        at_scale("hundreds of tokens", lambda d: _episode(d, 400)),
    ),
    observe=after_appending,
    mistakes={
        "encoded-again": encoded_again,
        "reply-pushed": {"[appended]": "return ids + reply_ids, mask + [True] * len(reply_ids)"},
        "characters-counted": {"[appended]": "return ids + reply_ids, mask + [False] * len(reply)"},
        "stripped": {"encode()": "reply_ids = tokenizer.encode(reply.strip(), add_special_tokens=False)"},
        "a-new-text-begins": {"encode()": "reply_ids = tokenizer.encode(reply)"},
        "in-place": {"[appended]": "ids += reply_ids; mask += [False] * len(reply_ids); return ids, mask"},
    },
)  # fmt: skip


def written(*contents: str) -> str:
    return "".join(f"<tool_call>\n{content}\n</tool_call>" for content in contents)


ADD, LOOK = '{"name": "add", "arguments": {"a": 17, "b": 58}}', '{"name": "look", "arguments": {"word": "rain"}}'


def _calls(d: Draws) -> tuple:
    bad = ['{"name": "add"', "add(17, 58)", '{"arguments": {}}', "[1, 2]", '{"name": 3, "arguments": {}}', "17"]
    good = [ADD, LOOK, '{"name": "now"}', '{"arguments": {"x": "a\\nb"}, "name": "write"}']
    chosen = [(good + bad)[i] for i in d.integers(len(good + bad), 6).tolist()]
    return ("I look. " + " Then ".join(map(written, chosen)) + "\nDone.",)


def as_json(result, args, kwargs):
    """Observe the calls as one text, whatever the order of their fields."""
    return {"the calls": json.dumps(result, sort_keys=True)}


def calls_in(contents: list[str], all_fields: bool = False) -> list[dict]:
    """Read the calls between the tags, one by one; with all_fields, as they stand there."""
    calls = []
    for content in contents:
        (call,) = (
            read_tool_calls(f"<tool_call>{content}</tool_call>".replace("\n", " ")) if "</" not in content else [{}]
        )
        calls.append({"error": content} if "name" not in call else json.loads(content) if all_fields else call)
    return calls


def contents_of(text: str, pattern: str = "<tool_call>(.*?)</tool_call>") -> list[str]:
    return re.findall(pattern, text, re.DOTALL)


READ_TOOL_CALLS = Exercise(
    function=read_tool_calls,
    cases=(
        given("one call", written(ADD)),
        given("no call", "The sum is 75."),
        given("two calls, and words around them", f"First {written(ADD)} and then {written(LOOK)}."),
        given("JSON that does not end", written('{"name": "add", "arguments": {"a": 17}')),
        given("a bad call between two good ones", written(ADD, "add(17, 58)", LOOK)),
        given("no name", written('{"arguments": {"a": 1}}')),
        given("a name that is no string", written('{"name": 3, "arguments": {}}')),
        given("no arguments", written('{"name": "now"}')),
        given("arguments that are no dict", written('{"name": "add", "arguments": "17, 58"}')),
        given("JSON, but no dict", written("[1, 2]")),
        given("more fields", written('{"id": 7, "name": "now", "arguments": {}}')),
        given("a call that is not closed", '<tool_call>{"name": "add"'),
        drawn("six calls, good and bad", _calls),
        extreme("a line break in an argument", '<tool_call>{"name": "write",\n\n"arguments": {}}</tool_call>'),
    ),
    observe=as_json,
    mistakes={
        "first-only": lambda text: read_tool_calls(text)[:1],
        "greedy": lambda text: calls_in(contents_of(text, "<tool_call>(.*)</tool_call>")),
        "not-closed-and-read": lambda text: calls_in(contents_of(text, "<tool_call>(.*?)(?:</tool_call>|$)")),
        "other-fields-kept": lambda text: calls_in(contents_of(text), all_fields=True),
        "error-stripped": lambda text: [
            {key: value.strip() if key == "error" else value for key, value in call.items()}
            for call in read_tool_calls(text)
        ],
        "regex-no-dotall": lambda text: [
            call
            for call, content in zip(
                read_tool_calls(text), re.findall("<tool_call>(.*?)</tool_call>", text, re.DOTALL), strict=True
            )
            if "\n" not in content
        ],
        "bad-calls-dropped": lambda text: [call for call in read_tool_calls(text) if "error" not in call],
        "name-not-checked": {"isinstance()": "well = True"},
        "arguments-needed": lambda text: [
            call if '"arguments"' in content else {"error": content}
            for call, content in zip(
                read_tool_calls(text), re.findall("<tool_call>(.*?)</tool_call>", text, re.DOTALL), strict=True
            )
        ],
    },
)


def _turns(d: Draws, P: int, G: int, K: int, states: int) -> tuple:
    """Rewards, turns and states; at least one episode has all turns, NaN where there is none."""
    mask = torch.stack([d.ragged(G, K) for _ in range(P)])
    return d.normal(P, G, K).masked_fill(~mask, NAN), mask, d.integers(states, P, G, K)


def reward_of_the_turn_alone(turn_rewards, turn_mask, states=None, gamma=1.0):
    return turn_advantages(turn_rewards, turn_mask, states, 0.0)


ALL = torch.ones(1, 2, 2, dtype=torch.bool)
THREE = torch.tensor([[[True, True], [True, False], [True, True]]])
TURN_ADVANTAGES = Exercise(
    function=turn_advantages,
    cases=(
        given("two episodes of two turns, one wins", f64([[[0.0, 1.0], [0.0, 0.0]]]), ALL),
        given("a reward in the first turn", f64([[[1.0, 0.0], [0.0, 0.0]]]), ALL),
        given("an episode that ends earlier", f64([[[0.0, 1.0], [1.0, NAN], [0.0, 0.0]]]), THREE),
        given(
            "states that are shared, and one that is not",
            f64([[[0.0, 1.0], [0.0, 0.0], [0.0, 3.0]]]),
            torch.ones(1, 3, 2, dtype=torch.bool),
            torch.tensor([[[0, 1], [0, 2], [0, 1]]]),
        ),
        given("a state that comes back", f64([[[1.0, 2.0], [0.0, 0.0]]]), ALL, torch.zeros(1, 2, 2, dtype=torch.long)),
        given("a discount", f64([[[0.0, 1.0], [1.0, 0.0]]]), ALL, None, 0.5),
        given("all earn the same", f64([[[0.0, 1.0], [0.0, 1.0]]]), ALL),
        drawn("two groups, ragged", lambda d: _turns(d, 2, 4, 3, 3)),
        drawn("by turn, discounted", lambda d: (*_turns(d, 2, 4, 3, 3)[:2], None, 0.9)),
        drawn("turns with gaps between them", lambda d: (d.normal(1, 4, 3), d.holes(4, 3)[None])),
        extreme(
            "equal rewards that leave a residue in a mean", f64([[[0.1], [0.1], [0.1]]]),
            torch.ones(1, 3, 1, dtype=torch.bool),
        ),
        at_scale("twenty episodes of six turns", lambda d: (*_turns(d, 3, 20, 6, 5), 0.9)),
    ),
    mistakes={
        "own-episode-kept": {"11.8": "in_baseline = same_state"},
        "other-states-too": {
            "11.8": "in_baseline = other_episode & same_state.any(-1, keepdim=True) & same_state.any(-2, keepdim=True)"
        },
        "alone-gets-nothing": {"11.6": "advantages = differences / count.clamp(min=1)"},
        "whole-reward": lambda turn_rewards, turn_mask, states=None, gamma=1.0: trajectory_advantages(
            turn_rewards, turn_mask
        ),
        "states-ignored": lambda turn_rewards, turn_mask, states=None, gamma=1.0: turn_advantages(
            turn_rewards, turn_mask, None, gamma
        ),
        "discount-forgotten": lambda turn_rewards, turn_mask, states=None, gamma=1.0: turn_advantages(
            turn_rewards, turn_mask, states
        ),
        "reward-of-the-turn-alone": reward_of_the_turn_alone,
    },
)  # fmt: skip


def learn_by_playing(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: GuessWorld,
    secrets: Int[Tensor, " P"],
    steps: int,
    num_generations: int = 8,
) -> None:
    """GRPO in an environment of many turns, whole: play, compare, and push what the policy wrote.

    The game is higher or lower. An episode is a row of tokens, a guess and the world's word in turn; the guess g is
    token g, from 1 to `world.numbers`. It is over when the world says found, or after `world.guesses` guesses. Its
    reward is 1 if the world said found, else 0.

    Args:
        policy: takes tokens (B, T) and returns logits (B, T, V): at each place, those of the token there, given the
            tokens before it. What stands there already, or behind it, makes no difference. Where a guess is due, only
            numbers have a chance.
        optimizer: of the policy's parameters. Each step makes one update.
        world: `world.answer(secrets, guesses)` takes (B,) twice and returns the tokens of the words, (B,);
            `world.found` is the token that says found. Token 0 is padding.
        secrets: of the groups. Every step plays all of them.
        steps: how often episodes are played.
        num_generations: G, the episodes with one secret, to be compared with each other, Eq. (2.7).
    """
    rows = secrets.repeat_interleave(num_generations)  # B
    for _ in range(steps):
        tokens = torch.full((len(rows), 2 * world.guesses), PAD)  # B T
        mask, playing = torch.zeros_like(tokens).bool(), torch.ones_like(rows).bool()
        for t in range(0, tokens.shape[1], 2):
            with torch.no_grad():
                guess = Categorical(logits=policy(tokens)[:, t]).sample()  # B
            word = world.answer(rows, guess)
            mask[:, t] = playing  # [mask]
            tokens[playing, t], tokens[playing, t + 1] = guess[playing], word[playing]
            playing = playing & (word != world.found)  # [over]
        rewards = (tokens == world.found).any(-1).float()
        advantages = group_advantages(rewards.view(-1, num_generations)).flatten()
        loss, _ = policy_loss(token_logprobs(policy(tokens), tokens), advantages, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


FORBIDDEN = -1e3  # the logit of what is no number where a guess is due: finite, so that no product with it is NaN
SURE = 200.0  # the logit of a guess that is certain: the others have a probability of exactly 0


class Heard(GuessWorld):
    """Higher or lower, which remembers the guesses that it was asked about."""

    @property
    def first_guesses(self) -> list[int]:
        return [guess for _, guess in self._heard()[0]] if self._heard() else []

    def guesses_after(self, first_guess: int) -> set[int]:
        """Guesses in episodes in which the first guess is not the secret; the episodes that are over do not count."""
        return {guess for call in self._heard() for secret, guess in call if secret != first_guess} - {first_guess}

    def _heard(self) -> list[list[tuple[int, int]]]:
        """Secrets and guesses of each call."""
        return self.__dict__.setdefault("heard", [])

    def answer(self, secrets: Int[Tensor, " B"], guesses: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        self._heard().append(list(zip(secrets.tolist(), guesses.tolist(), strict=False)))
        return self._word(secrets, guesses)

    def _word(self, secrets, guesses):
        return super().answer(secrets, guesses)


class Generous(Heard):
    """A world that says found, whatever is guessed."""

    def _word(self, secrets, guesses):
        return torch.full_like(guesses, self.found)


class Unlike(Heard):
    """A world in which secret 1 is always found, and no other ever is."""

    def _word(self, secrets, guesses):
        return torch.where(secrets == 1, self.found, self.higher)


class Recalling(GuessPolicy):
    """A policy that recalls the last two tokens: logits of its own for each place and each pair of them.

    goal: a probability of finding the secret that training has to exceed. chance: what it was before.
    """

    goal: float
    chance: float
    watch: Watch

    def __init__(self, world: GuessWorld, first_guess: int, second_guess: int):
        nn.Module.__init__(self)  # a table takes the place of the transformer
        V = world.vocabulary
        self.world, self.first_guess, self.second_guess = world, first_guess, second_guess
        self.logits = nn.Parameter(torch.zeros(2 * world.guesses, V, V, V))
        if first_guess:
            self.logits.data[0, ..., first_guess] = SURE
        if second_guess:
            self.logits.data[2, ..., second_guess] = SURE
        self.start = self.logits.detach().clone()

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        position, token = torch.arange(tokens.shape[1]), torch.arange(self.world.vocabulary)
        second_last, last = (nn.functional.pad(tokens, (n, 0))[:, : tokens.shape[1]] for n in (2, 1))
        forbidden = (position[:, None] % 2 == 0) & ((token < 1) | (token > self.world.numbers))
        return self.logits[position, second_last, last].masked_fill(forbidden, FORBIDDEN)

    def trained(self) -> tuple[list[bool], bool, bool]:
        """Compare with the start: the turns whose guesses were trained; whether words or tokens behind the end were."""
        position, last = torch.arange(2 * self.world.guesses)[:, None], torch.arange(self.world.vocabulary)
        is_reply = (last > self.world.numbers) & (last < self.world.found)
        is_guess = (position % 2 == 0) & (is_reply | (position == 0))
        is_word = (position % 2 == 1) & (last >= 1) & (last <= self.world.numbers)
        changed = (self.logits != self.start).any(-1).any(1)  # of position and last token
        turns = (changed & is_guess).any(-1)[::2].tolist()
        return turns, bool((changed & is_word).any()), bool((changed & ~is_guess & ~is_word).any())


def after_playing(result, args, kwargs):
    """Observe how often the policy finds the secret, exactly, and what was trained."""
    policy, _, world, *_ = args
    turns, words, behind_the_end = policy.trained()
    first, chance = world.first_guesses, win_probability(policy).item()
    are_drawn = not policy.first_guess or set(first) == {policy.first_guess}
    if policy.second_guess:
        are_drawn &= world.guesses_after(policy.first_guess) == {policy.second_guess}
    return {
        "the number of updates": policy.watch.updates,
        "whether the guesses are drawn from the policy": are_drawn,
        "whether each update is made with its own gradient alone": policy.watch.alone,
        "whether the world's words are trained": words,
        "whether anything behind the end of an episode is trained": behind_the_end,
        "the turns whose guesses are trained": turns,
        "whether the policy finds the secret less often than before": chance < policy.chance - 0.1,
        "whether the policy has learnt to find the secret": chance > policy.goal,
    }


def _game(
    label: str,
    numbers: int,
    guesses: int,
    steps: int,
    rate: float,
    goal: float = 0.9,
    world: type[Heard] = Heard,
    secrets: list[int] | None = None,
    first_guess: int = 0,
    second_guess: int = 0,
    **settings,
) -> Case:
    """A case: the policy plays in `world`. goal: a probability of finding the secret that every right answer exceeds.

    Binary search would find it always; a policy may end in a local optimum, as in the notebook: 2 of 3, or 4 of 7.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        model = Recalling(GuessWorld(numbers, guesses), first_guess, second_guess)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        model.goal, model.watch, model.chance = goal, Watch(optimizer), win_probability(model).item()
        chosen = torch.tensor(secrets) if secrets else 1 + torch.randperm(numbers, generator=Draws(seed).generator)
        return (model, optimizer, world(numbers, guesses), chosen, steps), settings

    return Case(build, label)


LEARN_BY_PLAYING = Exercise(
    function=learn_by_playing,
    cases=(
        _game("three numbers, two guesses", 3, 2, 30, 0.2, 0.62),
        _game("a world that says found to every guess", 3, 2, 3, 0.1, world=Generous),
        _game("one secret is always found, the other never", 3, 2, 3, 0.1, world=Unlike, secrets=[1, 3]),
        _game(
            "as many of the same secret as episodes of a group", 3, 2, 3, 0.1, world=Unlike, secrets=[1, 1, 3, 3],
            num_generations=2,
        ),
        _game("the first guess is certain", 3, 2, 30, 0.2, first_guess=2),
        _game("both guesses are certain", 3, 2, 2, 0.2, first_guess=2, second_guess=1),
        _game("seven numbers, three guesses", 7, 3, 60, 0.2, 0.5, num_generations=16),
    ),
    observe=after_playing,
    mistakes={
        "world-trained": {"[mask]": "mask[:, t : t + 2] = playing[:, None]"},
        "behind-the-end": {"[over]": "playing = playing.clone()"},
        "ascends": {"backward()": "(-loss).backward()"},
        "no-centre": {"group_advantages()": "advantages = rewards"},
        "one-group": {"group_advantages()": "advantages = group_advantages(rewards[None]).flatten()"},
        "mixed-secrets": {"repeat_interleave()": "rows = secrets.repeat(num_generations)"},
        "gradients-added": {"zero_grad()": ""},
        "last-turn-only": {"[mask]": "mask[:, t] = playing & (t == tokens.shape[1] - 2)"},
        "first-turn-only": {"[mask]": "mask[:, t] = playing & (t == 0)"},
        "not-the-policys": {"sample()": "guess = torch.randint(1, world.numbers + 1, rows.shape)"},
        "likeliest-guess": {"sample()": "guess = policy(tokens)[:, t].detach().argmax(-1)"},
        "shifted-as-a-language-model": {
            "policy_loss()": "logp = token_logprobs(policy(tokens)[:, :-1], tokens[:, 1:])\n"
            "loss, _ = policy_loss(logp, advantages, mask[:, 1:])"
        },
        "drawn-at-the-last-token": {
            "sample()": "at = max(t - 1, 0)\nguess = Categorical(logits=policy(tokens)[:, at]).sample()"
        },
    },
)  # fmt: skip
