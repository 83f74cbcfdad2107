"""What a teacher has set for a class is remembered with its results: an option that is left out stays as it was.

So points for written answers or a single student can be graded weeks later without a roster or a deadline being lost.
The word none takes a setting away.
"""

from pathlib import Path

NONE = "none"
STARTING = {"late_days": 0, "late_cost": 0.0, "time_limit": 30.0, "memory_limit": 4.0}
FILES = ("roster", "times", "overrides", "rubric", "pseudonyms")
KEPT = (*FILES, "deadline", "assignment", *STARTING)  # what lateness costs comes after the deadline


def with_remembered(options: dict, before: dict) -> tuple[dict, dict, list[str]]:
    """The options as they hold now, what to remember of them, and what to tell.

    Args:
        options: as given; None for what was left out.
        before: what the results folder remembers, by name; files as absolute paths.

    Raises:
        ValueError: for costs and days of lateness without a deadline.
    """
    given, options, told = options, dict(options), []
    for name in KEPT:
        if given[name] is not None:
            options[name] = None if str(given[name]).lower() == NONE else given[name]
        elif before.get(name) is not None and (options["deadline"] or not name.startswith("late_")):
            options[name] = Path(before[name]) if name in FILES else before[name]
            told.append(f"--{name.replace('_', '-')} {before[name]}")
    for name in ("late_days", "late_cost"):
        if given[name] and not options["deadline"]:
            raise ValueError(f"{name} is {given[name]}, and there is no deadline; expected --deadline with it")
    keep = {name: _plain(options[name]) for name in KEPT if options[name] not in (None, STARTING.get(name))}
    # The list that tells pseudonyms is still needed when names are shown again: sheets were filled in behind them.
    names = keep.get("pseudonyms") or before.get("names")
    keep |= {"names": names} if names else {}
    options |= {name: value for name, value in STARTING.items() if options[name] is None}
    return options, keep, told


def _plain(value):
    return str(value.resolve()) if isinstance(value, Path) else value
