"""Calls without tags: a turn is a call if all of it is one JSON call of a known tool; any other turn is text."""

import pytest

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.environments.tool_call_format import ToolCallFormat
from grpo_lab.rollout.environments.tools import ToolEnvironment
from tests.support.tool_policy import END, ROWS, add, call, make_tool_policy, sample_scripts

ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def sub_add(a: int) -> int:
    """Another tool, whose name ends like the first one's.

    Args:
        a: a number
    """
    return a


@pytest.fixture(scope="module")
def policy():
    return make_tool_policy()


def read(policy, turn: str) -> tuple[dict, str]:
    _, tokenizer = policy

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    call_format = ToolCallFormat(tokenizer, ToolEnvironment([add, sub_add]).schemas)
    return call_format.read_turn(encode(turn), encode("<|im_start|>user\n1+2<|im_end|>\n<|im_start|>assistant\n"))


@pytest.mark.parametrize("end", [END, ""], ids=["ended", "cut"])
@pytest.mark.parametrize(
    ("turn", "arguments"),
    [
        (ADD, {"a": 1, "b": 2}),
        (f" \n{ADD}\n", {"a": 1, "b": 2}),
        (f"```json\n{ADD}\n```", {"a": 1, "b": 2}),
        (f"```\n{ADD}```\n", {"a": 1, "b": 2}),
        ('{"arguments":{"a":-1.5e3,"b":[true,{"c":"}"}]},"name":"add"}', {"a": -1500, "b": [True, {"c": "}"}]}),
        ('{"name": "add", "arguments": {}}', {}),
        (r'{"name": "add", "arguments": {"a": "\"```\n\u00e9"}}', {"a": '"```\né'}),
    ],
)  # fmt: skip
def test_complete_json_turn_is_a_tool_call(turn, arguments, end, policy):
    message, problem = read(policy, turn + end)
    function = {"name": "add", "arguments": arguments}
    expected = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    assert (message, problem) == (expected, "")


@pytest.mark.parametrize("end", [END, ""], ids=["ended", "cut"])
@pytest.mark.parametrize(
    "turn",
    [
        f"I call {ADD}",
        f"{ADD} and wait",
        f"{ADD}\n{ADD}",
        f"[{ADD}]",
        f"```json\n{ADD}",  # the block is not closed
        f"{ADD}\n```",
        f"```python\n{ADD}\n```",
        f"Here it is:\n```json\n{ADD}\n```",
        ADD[:-1],
        ADD.replace('"add"', '"subtract"'),
        ADD.replace('"add"', '"ad"'),
        ADD.replace('"add"', "add"),
        ADD.replace('"', "'"),
        ADD.replace("2}", "2,}"),
        ADD.replace("2}", "02}"),
        ADD.replace("2}", '"line\nbreak"}'),
        '{"name": "add"}',
        '{"name": "add", "arguments": [1, 2]}',
        '{"name": "add", "arguments": "{}"}',
        '{"name": "add", "arguments": null}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '{"name": "add", "arguments": {}, "id": 1}',
        '{"name": "Ann", "arguments": {"name": "add"}}',
        '{"function": {"name": "add", "arguments": {}}}',
    ],
)
def test_malformed_json_is_no_tool_call(turn, end, policy):
    message, problem = read(policy, turn + end)
    assert (message, problem) == ({"role": "assistant", "content": turn}, "")


def test_tagged_tool_calls_are_read(policy):
    message, _ = read(policy, f"{ADD}\n{call('sub_add', a='```')}{END}")
    (read_call,) = message["tool_calls"]
    assert read_call["function"] == {"name": "sub_add", "arguments": {"a": "```"}} and message["content"] == ADD
    for turn in (f"<tool_call>\n{ADD}", f"```json\n<tool_call>\n{ADD}\n```", ADD.replace("1", '"<tool_call>"')):
        message, problem = read(policy, turn + END)
        assert "could not parse region as JSON" in problem and "tool_calls" not in message


@pytest.mark.parametrize(
    "turn",
    [
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        '{"name": "add", "arguments": ' + '{"a":' * 2000 + "1" + "}" * 2001,
    ],
)
def test_json_that_is_nested_without_end_is_an_error_that_the_policy_reads(turn, policy):
    message, problem = read(policy, turn + END)
    assert "recursion" in problem and message == {"role": "assistant", "content": turn}


def test_a_bare_call_is_answered_after_the_ids_that_were_sampled(monkeypatch, policy):
    """The ids of the turn stay as they were sampled, without tags; the template writes the prompt and the reply."""
    model, tokenizer = policy
    sample_scripts(monkeypatch, tokenizer, [[ADD + END, "It is 3." + END], [f"I call {ADD}{END}"]])
    agent = ToolEnvironment([add])
    rollout = agent.sample(model, tokenizer, ROWS[:1], SamplingParams(2, 400))
    first, second = rollout.episodes
    assert (first.num_calls, first.num_failures, second.num_calls) == (1, 0, 0)
    assert [message["role"] for message in first.messages] == ["assistant", "tool", "assistant"]
    reply = "\n<|im_start|>user[3]<|im_end|>\n<|im_start|>assistant\n"
    ids, mask, policy_mask = (x[0] for x in (rollout.completion_ids, rollout.mask, rollout.policy_mask))
    assert tokenizer.decode(ids[mask]) == ADD + END + reply + "It is 3." + END
    assert tokenizer.decode(ids[policy_mask]) == ADD + END + "It is 3." + END
    prompt = tokenizer.apply_chat_template(
        ROWS[0]["prompt"], tools=agent.schemas, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(rollout.prompt_ids[0][rollout.prompt_mask[0]]) == prompt


def test_bare_json_call_is_read_on_the_trl_engine(policy):
    trl_run = pytest.importorskip("grpo_lab.train.trl.run")
    _, tokenizer = policy
    ids = tokenizer(ADD + END, add_special_tokens=False)["input_ids"]
    with trl_run.response_template_of_our_loop(tokenizer, ToolEnvironment([add])):
        (read_call,) = tokenizer.parse_response(ids, prefix="")["tool_calls"]
    assert read_call["function"] == {"name": "add", "arguments": {"a": 1, "b": 2}}
