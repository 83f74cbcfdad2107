"""The names of verl's configuration, read from its wheel: `python -m tests.parity.verl_names FILE.whl`.

`pip download verl==0.9.1 --no-deps` fetches the wheel, which is not installed: it needs another transformers. The list
is kept in verl_names.txt, a line for each name with its default as JSON, and the tests compare with that.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

LIST = Path(__file__).with_suffix(".txt")
CONFIG = "verl/trainer/config/_generated_ppo_trainer.yaml"  # all of it, as verl's own script puts it together
PARTS = ("actor_rollout_ref", "algorithm", "data", "reward", "trainer")  # of the configuration; no critic trains here


def leaves(values: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        elif not name.startswith("_"):
            yield prefix + name, value


def names_in(wheel: Path) -> dict[str, object]:
    """Each name of the configuration in a wheel, with its whole prefix, and its default."""
    with zipfile.ZipFile(wheel) as archive:
        whole = yaml.safe_load(archive.read(CONFIG))
    return dict(leaves({part: whole[part] for part in PARTS}))


def kept_names() -> tuple[str, dict[str, object]]:
    """The version of verl that the list was made from, and its names with their defaults."""
    version, *lines = LIST.read_text(encoding="utf-8").splitlines()
    return version, {name: json.loads(value) for name, value in (line.split(" ", 1) for line in lines)}


if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    lines = [wheel.name.split("-")[1], *(f"{name} {json.dumps(value)}" for name, value in names_in(wheel).items())]
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
