"""What learning platforms hand out: where a class begins in it, whose a file is, what Gradescope lists beside it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from grpo_lab.course.grading.files import GRADESCOPE_LIST, File, is_notebook, refusing, stem

MAX_AROUND = 4  # folders and archives around a class
AMONG_OTHERS = "it looks like the download of a class, beside other submissions: give it a folder of its own"

# What learning platforms make of names. Moodle: "Ada Lovelace_1234567_assignsubmission_file_", a folder or the
# beginning of a file's name. Canvas: "lovelaceada_LATE_1234_56789_name.ipynb". Gradescope: "submission_12345".
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w+?_(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_(?P<file>\d{3,})_(?P<rest>.+)", re.DOTALL)
_GRADESCOPE = re.compile(r"submission_(?P<id>\d+)")
_TIME = re.compile(r"['\"]?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? *(Z|UTC|[+-]\d\d:?\d\d)?['\"]?")


@dataclass(frozen=True)
class Owner:
    """Whose a file is, by the names on its way. `name_of_file` is what the student called it.

    number: the platform's, of the student. upload: Canvas's number of the file. email, created (seconds since 1970):
    what Gradescope's list says.
    """

    student: str
    number: str
    late: bool
    name_of_file: str
    platform: str = ""
    upload: int = 0
    email: str = ""
    created: float | None = None


@dataclass
class Listed:
    """What Gradescope's list says of one submission: by whom it is, and when it came, in seconds since 1970."""

    names: list[str]
    numbers: list[str]
    emails: list[str]
    created: float | None = None


def owner_of(parts: tuple[str, ...]) -> Owner:
    """Whose a file is: by a name that a learning platform made, or else by its outermost folder, or its own name."""
    first, file = parts[0], parts[-1]
    own = stem(first) if len(parts) == 1 or first == file else first
    # Canvas first: a name of Moodle's is none of Canvas's, and what a student called a file may look like Moodle's.
    if match := _CANVAS.fullmatch(first):
        name_of_file = match["rest"] if len(parts) == 1 else file
        return Owner(match["name"], match["id"], bool(match["late"]), name_of_file, "canvas", int(match["file"][:18]))
    if match := _MOODLE.fullmatch(first) or _MOODLE.fullmatch(own + "_"):
        name_of_file = match["rest"] if len(parts) == 1 else file
        return Owner(match["name"].strip(), match["id"], False, name_of_file or file, "moodle")
    if match := _GRADESCOPE.fullmatch(own):
        return Owner(own, match["id"], False, file, "gradescope")
    return Owner(own, "", False, file)


def as_listed(owner: Owner, listed: dict[str, Listed]) -> Owner:
    """The owner with what Gradescope's list says; who handed in alone has a number and an address of their own."""
    says = listed.get(owner.student)
    if says is None:
        return owner
    known = replace(owner, student=" and ".join(says.names) or owner.student, created=says.created)
    if len(says.names) == 1:
        known = replace(known, number="".join(says.numbers) or owner.number, email="".join(says.emails))
    return known


def without_the_archive(files: list[File]) -> list[File]:
    """The archive stands for the class, and so does a single folder in it that holds a folder for each student."""
    depth = 1
    while files and min(len(file.parts) for file in files) > depth + 2 and len({f.parts[depth] for f in files}) == 1:
        if owner_of(files[0].parts[depth:]).platform:
            break
        depth += 1
    return [replace(file, parts=file.parts[depth:] or file.parts) for file in files]


def class_of(files: list[File], depth: int = 0) -> list[File]:
    """The class itself: a folder or an archive around a platform's download is no student, and is taken off.

    Only where that holds for all that lies beside it, and never below the name that a platform gave a student: what
    somebody packs into a submission does not become the class.
    """
    if depth > MAX_AROUND or _is_download(files):
        return files
    entries: dict[str, list[File]] = {}
    for file in files:
        entries.setdefault(file.parts[0], []).append(file)
    opened = {}
    for entry, own in entries.items():
        if owner_of((entry, "")).platform or any(len(file.parts) == 1 for file in own):
            continue
        below = [replace(file, parts=file.parts[1:], packed=None) for file in own]
        inner = class_of(below, depth + 1)
        if inner is not below or _is_download(below):
            opened[entry] = inner
    if not opened:
        return files
    if any(entry not in opened and any(is_notebook(file.name) for file in own) for entry, own in entries.items()):
        opened = {entry: [File((entry,), entries[entry][0].path, refusing(AMONG_OTHERS))] for entry in opened}
    return [file for entry, own in entries.items() for file in opened.get(entry, own)]


def _is_download(files: list[File]) -> bool:
    """Gradescope's list, a name of Moodle's, or two names of another platform."""
    owners = {file.parts[0]: owner_of(file.parts) for file in files}
    made = [owner for owner in owners.values() if owner.platform]
    return GRADESCOPE_LIST in owners or len(made) > 1 or any(owner.platform == "moodle" for owner in made)


def listed_by_gradescope(files: Iterable[File]) -> dict[str, Listed]:
    """submission_12345 -> what the lists among the files say. Of their YAML, these lines are read:

    submission_12345:
      :submitters:
      - :name: Ada Lovelace
        :sid: '1001'
        :email: ada@uni.example
      :created_at: 2026-11-10 20:00:00.000000000 Z
    """
    found: dict[str, Listed] = {}
    for file in files:
        try:
            lines = file.read().decode("utf-8-sig").splitlines()
        except (ValueError, UnicodeError):
            continue
        key = section = ""
        for line in lines:
            if heading := re.match(r"(submission_\d+):", line):
                key, section = heading[1], ""
                found[key] = Listed([], [], [])
            elif key and (part := re.match(r"  :(\w+):\s*(.*)", line)):
                section = part[1]
                if section == "created_at":
                    found[key].created = _seconds(part[2].strip())
            elif section == "submitters" and (own := re.match(r"\s*-?\s*:(name|sid|email):\s*(.+)", line)):
                value = _unquoted(own[2].strip())
                {"name": found[key].names, "sid": found[key].numbers, "email": found[key].emails}[own[1]].append(value)
    return found


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text


def _seconds(text: str) -> float | None:
    """Since 1970. Without a zone it is UTC."""
    match = _TIME.fullmatch(text)
    if not match:
        return None
    try:
        time = datetime.fromisoformat(f"{match[1]}T{match[2]}{(match[3] or 'Z').replace('UTC', 'Z')}")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
