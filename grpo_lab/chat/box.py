"""A small chat box for a notebook, in which several policies answer side by side."""

import html

from grpo_lab.chat.answer import reply


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
