"""Put something into a notebook's output, or print its text in a shell."""

import sys


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
