"""The origin of a model: the precision and the name with which it was loaded, stored on the model itself.

transformers' models have no place for it, so one attribute of ours is set on the object. A deep copy has it as well.
"""

from dataclasses import dataclass, replace
from typing import Any

ATTRIBUTE = "grpo_lab_origin"


@dataclass(frozen=True)
class Origin:
    """How and from where a model was loaded.

    Args:
        precision: The precision in which the model is to be trained, a name in `PRECISIONS`. None: its weights decide.
        name: The hub id of the model, or the absolute path of its folder. None: its `name_or_path` holds.
        merged_adapter: The folder of the LoRA adapter that was merged into its weights. None: no adapter was merged.
    """

    precision: str | None = None
    name: str | None = None
    merged_adapter: str | None = None


def origin_of(model: Any) -> Origin:
    """Return the origin of a model; all its fields are None for a model that `load_policy` has not loaded."""
    return getattr(model, ATTRIBUTE, Origin())


def set_origin(model: Any, **changes: str | None) -> None:
    """Change fields of the origin of a model, given as keyword arguments; the other fields stay."""
    setattr(model, ATTRIBUTE, replace(origin_of(model), **changes))
