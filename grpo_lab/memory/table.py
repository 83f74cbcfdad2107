"""How a memory plan looks: a plain table in a shell, a light one in a notebook."""

import html

from grpo_lab.display import GIB, text_table


def cells(plan) -> list[list[str]]:
    """Header, one row a part (those that take nothing are left out), and the totals."""
    names = dict.fromkeys(part for parts in plan.stations.values() for part in parts)
    used = [part for part in names if any(parts.get(part) for parts in plan.stations.values())]
    rows = [[part, *(gib(parts.get(part, 0)) for parts in plan.stations.values())] for part in used]
    totals = ["together", *(gib(total) for total in plan.totals.values())]
    return [["GiB", *plan.stations], *rows, totals]


def gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else "-"


def as_text(plan) -> str:
    header, *rows = cells(plan)
    lines = text_table(header, rows).splitlines()
    lines.insert(-1, "-" * len(lines[0]))
    return "\n".join([title(plan), *lines, f"peak: {plan.peak / GIB:.2f} GiB, {plan.peak_station}"])


def title(plan) -> str:
    s, config = plan.setting, plan.setting.config
    return (
        f"{s.shape.parameters:,} parameters, {s.mode}; {config.generation_batch_size} completions a step x "
        f"({s.prompt_length} prompt + {config.max_completion_length} response) tokens, "
        f"{config.per_device_train_batch_size} rows at a time"
        f"{', layers checkpointed' if config.gradient_checkpointing else ''}"
        f"{'; an upper bound on any processor' if s.bound else ''}"
    )


def as_html(plan) -> str:
    """Colours of the page are inherited; the peak is bold, and said in words too."""
    cell, first = (f"text-align:{side};padding:0.2em 0.8em" for side in ("right", "left"))
    body, (header, *rows) = "", cells(plan)
    for row in rows:
        line = "border-top:1px solid currentColor;" if row is rows[-1] else ""
        body += f'<tr><th scope="row" style="{line}{first};font-weight:normal">{html.escape(row[0])}</th>'
        for station, value in zip(header[1:], row[1:], strict=True):
            strong = ";font-weight:bold" if row is rows[-1] and station == plan.peak_station else ""
            body += f'<td style="{line}{cell}{strong}">{value}</td>'
        body += "</tr>"
    head = "".join(f'<th scope="col" style="{cell}">{html.escape(name)}</th>' for name in header)
    caption = f'<caption style="text-align:left">{html.escape(title(plan))}</caption>'
    return (
        f'<table style="color:inherit;background:transparent">{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>Peak: {plan.peak / GIB:.2f} GiB, {plan.peak_station}.</p>"
    )
