"""The cell of a function in a notebook: is what stands on the page what is in memory?

IPython keeps what was run, cells that failed too, and Python the text that a function was compiled from. An edit that
was never run is seen by neither.
"""

import linecache
import re
import sys
from collections.abc import Callable


def is_stale(function: Callable) -> bool:
    """Recognise a function that a later cell defines anew, and failed to: the page has another one than the memory."""
    name, texts = getattr(function, "__name__", ""), _run_cells()
    text = cell_text(function)
    if text is None or text not in texts:
        return False
    later = texts[len(texts) - texts[::-1].index(text) :]
    return any(re.search(rf"^(?:async )?def {re.escape(name)}\b", cell, re.MULTILINE) for cell in later)


def is_changed(function: Callable, name: str) -> bool:
    """Recognise a function that another one has replaced in the notebook, or that is stale."""
    shell = _shell()
    if shell is None:
        return False
    current = shell.user_ns.get(name, function)
    texts = cell_text(current), cell_text(function)
    return is_stale(function) or (current is not function and (None in texts or texts[0] != texts[1]))


def cell_text(function: Callable) -> str | None:
    """The text of the cell that defined a function; None for one that no cell did."""
    code = getattr(function, "__code__", None)
    lines = linecache.cache.get(code.co_filename) if code is not None else None
    return "".join(lines[2]).strip() if lines and len(lines) > 2 else None


def _run_cells() -> list[str]:
    """The cells that were run, in their order, those that failed among them."""
    shell = _shell()
    return [text.strip() for text in shell.history_manager.input_hist_parsed] if shell is not None else []


def _shell():
    """The shell of IPython; None outside of it. It is not imported for the question."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
