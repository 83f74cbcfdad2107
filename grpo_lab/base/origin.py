"""The origin of a model: the precision and the name with which it was loaded, stored on the model itself.

transformers' models have no place for it, so one attribute of ours is set on the object. A deep copy has it as well.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

ATTRIBUTE = "grpo_lab_origin"
OLD_ATTRIBUTE = "loaded_for"  # the name of the precision on a model before 1.0.0


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
    origin = getattr(model, ATTRIBUTE, Origin())
    precision = getattr(model, OLD_ATTRIBUTE, origin.precision)
    if precision != origin.precision:  # a caller has set the old attribute
        message = f"model.{OLD_ATTRIBUTE} = ... is called set_origin(model, precision=...) now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        origin = replace(origin, precision=precision)
    return origin


def set_origin(model: Any, **changes: str | None) -> None:
    """Change fields of the origin of a model, given as keyword arguments; the other fields stay."""
    origin = replace(origin_of(model), **changes)
    setattr(model, ATTRIBUTE, origin)
    setattr(model, OLD_ATTRIBUTE, origin.precision)  # still readable under its old name
