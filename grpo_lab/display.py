"""How results are shown: as Markdown in a notebook, as text in a shell; tables and sizes in one form everywhere."""

import sys
from collections.abc import Iterable, Sequence

GIB = 2**30  # bytes


class View:
    """Something with a Markdown form, which notebooks take, and a text form, which is what a shell prints."""

    def __init__(self, markdown: str, text: str):
        self.markdown, self.text = markdown, text

    def bundle(self) -> dict[str, str]:
        return {"text/markdown": self.markdown, "text/plain": self.text}

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return self.bundle()

    def __repr__(self) -> str:
        return self.text


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table, all columns aligned to the left."""
    lines = [head, (":--",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_ipython() -> bool:
    """True in a notebook or an IPython shell. IPython is not imported for the question: where it runs, it is loaded."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def display(bundle: dict[str, str], metadata: dict | None = None, display_id: bool = False):
    """Show the richest form of `bundle` (MIME type to content); returns a handle for updates if display_id is True."""
    if not in_ipython():
        print(bundle["text/plain"])
        return None
    from IPython.display import display as ipython_display

    return ipython_display(bundle, metadata=metadata or {}, raw=True, display_id=display_id or None)
