"""Reading what an earlier version stored: the grades of a class in its term, and the outcomes in its notebooks.

Files are written with the names of the fields alone. The old names are listed here and nowhere else.
"""

from dataclasses import fields
from typing import Any

# The names under which earlier versions stored a field, by the name of the field.
EARLIER_NAMES = {
    "assignment_stem": "assignment",
    "submissions": "students",
    "failed_cells": "cells",
    "class_fingerprint": "of_class",
    "folded_parts": "folded",
    "isolation": "wall",
    "shares": "properties",
    "max_points": "full",
    "judged_cell": "judged",
    "platform_id": "number",
    "upload_id": "upload",
    "written_answer": "written",
    "exercises_as_text": "as_text",
    "has_gradient": "attached",
    "changed_arguments": "changed",
}


def field_values(dataclass_type: type, entry: dict[str, Any]) -> dict[str, Any]:
    """Return a stored dictionary by the names of the dataclass's fields, whichever version stored it."""
    names = {EARLIER_NAMES[field.name]: field.name for field in fields(dataclass_type) if field.name in EARLIER_NAMES}
    return {names.get(key, key): value for key, value in entry.items()}
