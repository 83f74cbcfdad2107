"""The entries of the table of TRL's names, `table.py`: what such a name is in this package."""

import enum
from dataclasses import dataclass
from typing import Any


class Handling(enum.Enum):
    """The way in which `--engine trl` treats a setting."""

    UNCHANGED = enum.auto()  # TRL receives the value under the same name
    TRANSLATED = enum.auto()  # TRL receives another value, or this package does itself what the setting says
    REFUSED = enum.auto()  # only the default is allowed


class Unit(enum.Enum):
    """The unit on TRL of a setting that this package counts in steps, one per rollout."""

    UPDATES = enum.auto()  # TRL receives it and counts its own steps, which are updates
    STEPS = enum.auto()  # this package reads it, also on TRL


@dataclass(frozen=True)
class TrlSetting:
    """A setting of this package: what `--engine trl` does with it, and what a file for TRL means by it.

    handling: What the engine does with it.
    unit: For a setting that counts steps, what it counts on TRL; None for any other setting.
    is_in_trl: Whether TRL's GRPOConfig has a setting with this name.
    default: TRL's default, where reading a file for TRL needs it; None where it does not.
    gets_trl_default: Whether a file for TRL without this setting gives the run TRL's default, since the outcome of a
        run depends on it and the default here is another. Any other default enters a conversion.
    refusal: The reason why a value other than the default is refused.
    drop_reason: Why the training is the same without a refused setting, up to rounding, so that the setting is dropped
        if it comes from the file of a run; "" if it is not dropped.
    typed_instead: What to type, for a setting that no file for TRL can set; "" for any other setting.
    """

    handling: Handling
    unit: Unit | None = None
    is_in_trl: bool = True
    default: Any = None
    gets_trl_default: bool = False
    refusal: str = ""
    drop_reason: str = ""
    typed_instead: str = ""


@dataclass(frozen=True)
class CommandOption:
    """An option of the command that is not a setting, under TRL's name.

    default: TRL's default, where reading a file for TRL needs it; None where it does not.
    """

    default: Any = None


@dataclass(frozen=True)
class Renamed:
    """A name of TRL for an option of the command with another name."""

    option: str


@dataclass(frozen=True)
class Converted:
    """A name of TRL that becomes part of another setting of this package.

    meaning: What becomes of it, for the page of all settings.
    default: TRL's default, where reading a file for TRL needs it; None where it does not.
    """

    meaning: str
    default: Any = None


@dataclass(frozen=True)
class Unsupported:
    """A name of TRL that this package lacks, although the outcome of a run depends on it.

    neutral_values: The values with which a run here is the same.
    remedy: What to do instead with any other value, or why there is nothing to do.
    """

    neutral_values: tuple
    remedy: str


@dataclass(frozen=True)
class NoEffect:
    """A name of TRL on which the outcome of a run here does not depend, with the reason."""

    reason: str


@dataclass(frozen=True)
class DatasetName:
    """A name of TRL for data to download, for which the user has to type --task."""


@dataclass(frozen=True)
class OtherVersion:
    """A name of another version of TRL, or of transformers.

    origin: The versions that had the name.
    successor: Its name in TRL's version of the table, or None.
    """

    origin: str
    successor: str | None


Entry = TrlSetting | CommandOption | Renamed | Converted | Unsupported | NoEffect | DatasetName | OtherVersion
