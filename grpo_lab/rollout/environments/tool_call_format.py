"""The format of tool calls and their results: read by the tokenizer's `parse_response`, written by its chat template.

Sampled ids are never encoded again. A call is read from the sampled ids. For a result, only the text that the template
writes after the policy's end token is encoded. So the template has to keep its prefix: the text of a conversation must
begin the text of every longer conversation. A template that drops earlier thoughts does not, and is refused.
"""

import json
import re
from itertools import takewhile
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments.environment import encode_reply

# JSON as a regular expression. json.loads can read every text that it matches.
_WS = r"[ \t\r\n]*+"
_JSON = (
    r'(?(DEFINE)(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+")'
    rf"(?P<pair>(?&string){_WS}:{_WS}(?&value))"
    rf"(?P<object>\{{{_WS}(?:(?&pair){_WS}(?:,{_WS}(?&pair){_WS})*+)?+\}})"
    rf"(?P<array>\[{_WS}(?:(?&value){_WS}(?:,{_WS}(?&value){_WS})*+)?+\])"
    r"(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)"
    r"(?P<value>(?&string)|(?&number)|(?&object)|(?&array)|true|false|null))"
)
_END = r"(?:<\|im_end\|>|<\|endoftext\|>)?\s*\Z"


def json_call_template(names: list[str]) -> dict:
    """Return a `response_template` for calls in the form of Qwen2.5, for tokenizers that have none.

    A call is JSON inside <tool_call> tags, as the chat templates write it. Small models leave out the tags. So a turn
    without tags is also a call if all of it, bare or in one fenced block, is a JSON object with two keys: `name`, the
    name of a tool, and `arguments`, an object.

    names: The names of the tools.
    """
    name = rf'"name"{_WS}:{_WS}"(?:{"|".join(map(re.escape, names))})"'
    arguments = rf'"arguments"{_WS}:{_WS}(?&object)'
    call = rf"\{{{_WS}(?:{name}{_WS},{_WS}{arguments}|{arguments}{_WS},{_WS}{name}){_WS}\}}"
    call_without_tags = rf"\A\s*+(?P<fence>```(?:json)?\s*+)?+(?={call}\s*+(?(fence)```\s*+){_END})(?!.*<tool_call>)"
    return {
        "start_anchor": "<|im_start|>assistant\n",
        "defaults": {"role": "assistant"},
        "fields": {
            "tool_calls": {
                "open_pattern": rf"{_JSON}(?:<tool_call>|{call_without_tags})",
                "close_pattern": rf"</tool_call>\s*|(?<!<tool_call>.*)\s*(?:```)?\s*(?={_END})",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    }


# A conversation that shows what a chat template writes.
EXAMPLE_CALL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up_word", "arguments": {"word": "rain 7"}},
}
EXAMPLE_PROMPT = [{"role": "user", "content": "What is it?"}]
EXAMPLE_THOUGHT = "<think>I look it up.</think>"
CHAT_TEMPLATE = "the chat template of this model"  # the subject of errors
TAKE_A_TUNED_MODEL = (
    "take a model tuned for tools, such as qwen; tiny has none, and a calculator in plain text: --task sums-calculator"
)


class ReadTurn(NamedTuple):
    """A turn of the policy as a message, and the error of a call in it that cannot be read."""

    message: dict  # with its calls under the key "tool_calls"; after an error: the text of the turn, and no calls
    error: str  # "" if all calls can be read


class ToolCallFormat:
    """Reads the calls of the policy and writes their results, in the format of a tokenizer and its chat template.

    Args:
        tokenizer: The tokenizer of the policy.
        schemas: JSON schemas of the tools; empty for an environment without tools.

    Raises:
        InputError: if the chat template writes no calls or no results, if it does not keep its prefix, or if its calls
            cannot be read.
    """

    def __init__(self, tokenizer, schemas: list[dict]):
        self.tokenizer = tokenizer
        self.schemas = schemas
        if not schemas:
            return
        self._check_template()
        self.response_template = getattr(tokenizer, "response_template", None) or json_call_template(
            [schema["function"]["name"] for schema in schemas]
        )
        self._check_reading()

    def read_turn(self, ids: list[int], earlier_ids: list[int]) -> ReadTurn:
        """Read a turn of the policy.

        ids: The ids of the turn.
        earlier_ids: The ids before the turn, including the prompt.
        """
        tokenizer = self.tokenizer
        if not self.schemas:
            return ReadTurn({"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}, "")
        try:
            keywords = {"schema": self.response_template, "prefix": earlier_ids, "tools": self.schemas}
            message = tokenizer.parse_response(ids, **keywords) if ids else {"role": "assistant"}
            content = message.get("content")
            message["content"] = content.removesuffix(tokenizer.eos_token) if isinstance(content, str) else ""
            for call in message.get("tool_calls") or ():
                _check_call(call)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            content = tokenizer.decode(ids, skip_special_tokens=True)
            text_of_error = " ".join(str(error).replace(tokenizer.eos_token, "").split())
            return ReadTurn({"role": "assistant", "content": content}, text_of_error)
        return ReadTurn(message, "")

    def write_results(self, results: list[dict]) -> list[int]:
        """Return the ids to append after the policy's end token: the results, and the beginning of its next turn.

        results: Messages with the role "tool", at least one.
        """
        name = results[0]["name"]  # some templates write the name of the call, not that of the result
        call_message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": name, "arguments": {}}}],
        }
        prefix = self._through_end_token(self._text([*EXAMPLE_PROMPT, call_message]))
        text = self._text([*EXAMPLE_PROMPT, call_message, *results], add_generation_prompt=True)
        if not text.startswith(prefix):
            raise self._prefix_error()
        return encode_reply(self.tokenizer, text[len(prefix) :])

    def _text(self, messages: list[dict], **keywords) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, **keywords)

    def _through_end_token(self, text: str) -> str:
        """Cut a text after its last end token; a template writes a line break after it."""
        end = self.tokenizer.eos_token
        return text[: text.rindex(end) + len(end)] if end in text else text

    def _check_template(self) -> None:
        if not self.tokenizer.chat_template:
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, problem="is missing")
        call_message = {"role": "assistant", "content": EXAMPLE_THOUGHT, "tool_calls": [EXAMPLE_CALL]}
        tool_message = {"role": "tool", "name": EXAMPLE_CALL["function"]["name"], "content": "It falls."}
        try:
            prefix = self._text([*EXAMPLE_PROMPT, call_message])
            text = self._text([*EXAMPLE_PROMPT, call_message, tool_message], add_generation_prompt=True)
        except Exception as error:  # templates raise errors of their own
            problem = f"refuses a conversation with a tool ({type(error).__name__}: {error})"
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, problem=problem) from error
        has_call = EXAMPLE_CALL["function"]["name"] in text and EXAMPLE_CALL["function"]["arguments"]["word"] in text
        if not has_call or tool_message["content"] not in text:
            problem = f"leaves out {'the results of tools' if has_call else 'tool calls'}"
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, problem=problem)
        if not text.startswith(self._through_end_token(prefix)) or EXAMPLE_THOUGHT not in text:
            raise self._prefix_error()

    def _prefix_error(self) -> InputError:
        problem = "does not keep its prefix: it writes earlier turns differently once there are later ones"
        expected = "expected one that only appends, since the policy is trained on the tokens that it sampled"
        return InputError(CHAT_TEMPLATE, None, expected, problem=problem)

    def _check_reading(self) -> None:
        """Raise InputError unless a call that the template writes is read as the same call."""
        prompt_text = self._text(EXAMPLE_PROMPT, add_generation_prompt=True)
        text = self._text([*EXAMPLE_PROMPT, {"role": "assistant", "content": "", "tool_calls": [EXAMPLE_CALL]}])
        # Some templates begin a turn with a call differently. So the response begins where the two texts part.
        common = [*takewhile(lambda pair: pair[0] == pair[1], zip(prompt_text, text, strict=False))]
        response = self._through_end_token(text)[len(common) :].lstrip("\n")
        response_ids, prompt_ids = (encode_reply(self.tokenizer, part) for part in (response, prompt_text))
        message, error = self.read_turn(response_ids, prompt_ids)
        if error or message.get("tool_calls") != [EXAMPLE_CALL]:
            problem = f"is not known for the calls of this chat template, such as {response!r:.90}"
            expected = "give the tokenizer its own (transformers' response parsing), or take a model such as qwen"
            raise InputError("response_template", None, expected, problem=problem)


class MalformedCall(ValueError):
    """A call that the policy wrote and that cannot be read. The policy gets the error as the result."""


def _check_call(call: Any) -> None:
    """Raise MalformedCall for a call without a name; give a call without arguments an empty dict of them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        excerpt = json.dumps(function, ensure_ascii=False, default=str)[:80]
        raise MalformedCall(f'expected {{"name": ..., "arguments": {{...}}}} in a call, not {excerpt}')
    if function.get("arguments") is None:
        function["arguments"] = {}
