"""Talk to a policy: one reply from the shell or a cell, and a small chat box for a notebook.

The reply is greedy, the most likely token at every step, because before and after training you want to see what the
policy thinks best and not what it happened to draw.
"""

import html

import torch
from transformers import GenerationConfig

from grpo_lab.checks import check_at_least
from grpo_lab.rollout import encode_prompts, end_token_ids, evaluating, pad_token_id
from grpo_lab.rollout.prompts import set_aside_generation_config


@torch.no_grad()
def reply(model, tokenizer, prompt: str | list[dict], max_new_tokens: int = 64) -> str:
    """The policy's most likely reply, without special tokens.

    prompt: what the user says, or a list of chat messages.
    max_new_tokens: the reply is cut off there, at least 1.
    """
    check_at_least("max_new_tokens", max_new_tokens, 1)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    ids, mask = (x.to(model.device) for x in encode_prompts(tokenizer, [messages]))
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=end_token_ids(model, tokenizer),
        pad_token_id=pad_token_id(tokenizer),
    )
    with evaluating(model), set_aside_generation_config(model):  # its penalties would change the reply
        sequence = model.generate(ids, attention_mask=mask.long(), generation_config=greedy)[0]
    return tokenizer.decode(sequence[ids.shape[1] :], skip_special_tokens=True)


class ChatBox:
    """An input line and the conversation above it, as an ipywidgets box. Each question stands alone: no memory.

    Several policies answer side by side, so that you can compare a model before and after training.

    policies: name -> model; all of them share the tokenizer.
    """

    def __init__(self, policies: dict, tokenizer, max_new_tokens: int = 64):
        import ipywidgets

        if not policies:
            raise ValueError("policies is empty; expected at least one, such as {'trained': model}")
        self.policies, self.tokenizer, self.max_new_tokens = policies, tokenizer, max_new_tokens
        self.turns: list[tuple[str, dict[str, str]]] = []
        self._shown = ipywidgets.HTML()
        self._line = ipywidgets.Text(placeholder="Ask something, then press Send", continuous_update=False)
        self._button = ipywidgets.Button(description="Send", button_style="primary")
        self._button.on_click(lambda _: self.send())
        self.box = ipywidgets.VBox([self._shown, ipywidgets.HBox([self._line, self._button])])

    def send(self) -> None:
        """Ask what stands in the input line."""
        question = self._line.value.strip()
        if question:
            self._line.value = ""
            self.ask(question)

    def ask(self, question: str) -> dict[str, str]:
        """Put a question to every policy; the replies, by name."""
        self._button.disabled = True
        try:
            replies = {
                name: reply(model, self.tokenizer, question, self.max_new_tokens)
                for name, model in self.policies.items()
            }
        finally:
            self._button.disabled = False
        self.turns.append((question, replies))
        self._shown.value = self.html()
        return replies

    def html(self) -> str:
        """The conversation so far. What a policy says is escaped: it is text, never markup."""
        parts = []
        for question, replies in self.turns:
            parts.append(f"<p><b>you</b>: {html.escape(question)}</p>")
            parts += [
                f'<p style="margin-left:2em"><b>{html.escape(name)}</b>: '
                f'<span style="white-space:pre-wrap">{html.escape(text) or "<i>(nothing)</i>"}</span></p>'
                for name, text in replies.items()
            ]
        return "".join(parts)

    def _repr_mimebundle_(self, **kwargs):
        return self.box._repr_mimebundle_(**kwargs)
