"""Read the names of verl's configuration from its wheel: `python -m tests.parity.verl_names FILE.whl`.

`pip download verl==0.9.1 --no-deps` fetches the wheel. verl is not installed, because it needs another transformers.
verl_names.txt has a line for each name with its default as JSON, and the tests compare with this file.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

LIST = Path(__file__).with_suffix(".txt")
CONFIG = "verl/trainer/config/_generated_ppo_trainer.yaml"  # the complete configuration, assembled by verl's script
PARTS = ("actor_rollout_ref", "algorithm", "data", "reward", "trainer")  # parts of the configuration, without critic


def leaves(values: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        elif not name.startswith("_"):
            yield prefix + name, value


def names_in(wheel: Path) -> dict[str, object]:
    """Return the default of each setting in a wheel, by its name with the full prefix."""
    with zipfile.ZipFile(wheel) as archive:
        configuration = yaml.safe_load(archive.read(CONFIG))
    return dict(leaves({part: configuration[part] for part in PARTS}))


def kept_names() -> tuple[str, dict[str, object]]:
    """Return the version of verl in verl_names.txt, and its names with their defaults."""
    version, *lines = LIST.read_text(encoding="utf-8").splitlines()
    return version, {name: json.loads(value) for name, value in (line.split(" ", 1) for line in lines)}


if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    lines = [wheel.name.split("-")[1], *(f"{name} {json.dumps(value)}" for name, value in names_in(wheel).items())]
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
