"""One look for all pages of a grading: self-contained, readable without a network, light or dark."""

import html

STYLE = """
:root { color-scheme: light dark; --line: #d0d0d0; --right: #00724f; --wrong: #b24a00; --none: #666; --quiet: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #555; --right: #4cc9a0; --wrong: #ff9d5c; --none: #aaa; --quiet: #2a2a2a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; } td.n { white-space: nowrap; }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; padding-top: .5rem; }
.right { color: var(--right); } .wrong { color: var(--wrong); } .none { color: var(--none); }
pre { background: var(--quiet); padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { color: var(--none); font-size: .9rem; }
"""


def safe(text) -> str:
    """What a stranger wrote, as text of a page."""
    return html.escape(str(text))


def document(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )
