"""The exercises of notebook 11."""

import json
import re

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from grpo_lab.advantages import trajectory_advantages, turn_advantages
from grpo_lab.course.exercise import NAN, Draws, Exercise, at_scale, drawn, extreme, f64, given
from grpo_lab.course.exercises.nb07 import TinyTokenizer

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
        drawn("a longer episode", lambda d: _episode(d, 9)),
        at_scale("hundreds of tokens", lambda d: _episode(d, 400)),
    ),
    observe=after_appending,
    mistakes={
        "encoded-again": encoded_again,
        "reply-pushed": {"[appended]": "return ids + reply_ids, mask + [True] * len(reply_ids)"},
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
        "greedy": lambda text: read_tool_calls(
            text if text.count("<tool_call>") < 2 else text.replace("</tool_call>", "", text.count("</tool_call>") - 1)
        ),
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
        "own-episode-kept": {"11.8": "compared = same_state"},
        "other-states-too": {"11.8": "compared = other_episode & same_state.any(-1, keepdim=True) & same_state.any(-2, keepdim=True)"},
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
    },
)  # fmt: skip
