"""How the doctor's findings look: as text in a shell, as a table in a notebook."""

import html
import re
from dataclasses import dataclass

WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
COLOURS = {"ok": "#009E73", "warn": "#E69F00", "fail": "#D55E00"}


@dataclass(frozen=True)
class Check:
    name: str
    status: str  # "ok", "warn" or "fail"
    found: str
    remedy: str = ""


class Report(list[Check]):
    """The checks, readable as text and as a table in a notebook."""

    @property
    def healthy(self) -> bool:
        return all(check.status != "fail" for check in self)

    def summary(self) -> str:
        counts = {status: sum(check.status == status for check in self) for status in WORDS}
        if counts["fail"]:
            return f"{counts['fail']} to mend before the notebooks run, {counts['warn']} to know about."
        return "Everything works." if not counts["warn"] else f"Everything runs; {counts['warn']} to know about."

    def __str__(self) -> str:
        lines = []
        for check in self:
            lines.append(f"{WORDS[check.status]:<5} {check.name:<14} {check.found}")
            if check.remedy:  # on one line, however long: commands are there to be copied
                lines.append(f"{'':<17} -> {check.remedy}")
        return "\n".join([*lines, "", self.summary()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # Colours of the page are inherited, and every status is a word too: light, dark and without colours.
        cell = "text-align:left;vertical-align:top;padding:0.3em 0.8em"
        rows = "".join(
            f'<tr><td style="{cell};border-left:0.4em solid {COLOURS[check.status]}"><b>{WORDS[check.status]}</b></td>'
            f'<td style="{cell}">{html.escape(check.name)}</td><td style="{cell}">{_html(check)}</td></tr>'
            for check in self
        )
        table = f'<table style="color:inherit"><tbody>{rows}</tbody></table>'
        return f"{table}<p>{html.escape(self.summary())}</p>"


def _html(check: Check) -> str:
    remedy = re.sub("`(.*?)`", r"<code>\1</code>", html.escape(check.remedy))
    return html.escape(check.found) + (f"<br>→ {remedy}" if remedy else "")
