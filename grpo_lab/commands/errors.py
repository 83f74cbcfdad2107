"""The one line that is said of an error, and which errors are faults of the package itself."""

import dis
import re
from pathlib import Path

from grpo_lab.commands.parser import one_line, options

PACKAGE = str(Path(__file__).parents[1])
FAULT_OF_OURS = (
    "This is a fault of grpo_lab, not of yours. Please report it: with these lines, the command, and what "
    "`python -m grpo_lab.doctor` prints."
)
WHERE = "(GRPO_LAB_TRACEBACK=1 shows where this comes from)"
# torch's and CUDA's words, on cards, Linux, macOS and Windows.
MEMORY_WAS_FULL = re.compile(r"out of memory|DefaultCPUAllocator|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
QUOTES = "'\""
LONGEST = 1200  # letters of a line
RENAMED = {"name": "model", "source": "task"}  # arguments of functions that the commands call under another name


def line_for(error: Exception, script: str = PACKAGE) -> str | None:
    """What the user of a command is told; None if there is nothing that a user could do about it.

    script: the file of the command, if it is none of the package's.

    A ValueError, a file or a package that is not as it should be is theirs, and so is whatever a line of the package
    raises on purpose. An error that any other line runs into, such as a KeyError, is a fault of the package.
    """
    if isinstance(error, (RuntimeError, MemoryError)) and _memory_was_full(error):
        return _advice_on_memory(error)
    on_purpose = raised_on_purpose(error, (PACKAGE, script))
    if not isinstance(error, (ValueError, OSError, ImportError)) and not (
        on_purpose and isinstance(error, (TypeError, RuntimeError))
    ):
        return None
    text = one_line(_text(error))
    if len(text) > LONGEST:  # such as all that a process of ours has said; what is wrong stands at the end
        return f"{_with_option(text[: LONGEST // 3])} ... {text[-LONGEST // 2 :]} {WHERE}"
    if on_purpose and not (isinstance(error, RuntimeError) and error.__cause__):
        return _with_option(text)
    return text if getattr(error, "filename", None) else f"{text} {WHERE}"


def raised_on_purpose(error: BaseException, ours: tuple[str, ...] = (PACKAGE,)) -> bool:
    """Whether a `raise` of ours raised it; not a line of another package, nor one that merely went wrong."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(ours) and dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{str(error.filename)!r}: {error.strerror}"
    return str(error) or type(error).__name__


def in_words_of_the_shell(text: str) -> str:
    """ "Go on with resume_from_checkpoint=True" as "Go on with --resume_from_checkpoint true", if that is an option."""
    known = options.get({})

    def written(found: re.Match) -> str:
        name, value = found.groups()
        inside_a_call = text.count("(", 0, found.start()) > text.count(")", 0, found.start())
        if name not in known or inside_a_call:
            return found[0]
        return f"{known[name]} {_word(value)}"

    return re.sub(r"""\b(\w+)=('[^']*'|"[^"]*"|[+-]?\w+(?:\.\w+)?)""", written, text)


def _word(value: str) -> str:
    if value in ("True", "False", "None"):
        return value.lower()
    return value if " " in value else value.strip(QUOTES)


def _with_option(text: str) -> str:
    """ "epsilon is -0.2; ..." as "--epsilon is -0.2; ...", if the command has this option."""
    text = in_words_of_the_shell(text)
    found = re.match(r"\w+", text)
    known = options.get({})
    name = found[0] if found else ""
    name = name if name in known else RENAMED.get(name, name)
    return known[name] + text[found.end() :] if name in known else text


def _memory_was_full(error: Exception) -> bool:
    return isinstance(error, MemoryError) or MEMORY_WAS_FULL.search(f"{type(error).__name__} {error}") is not None


def _advice_on_memory(error: Exception) -> str:
    said = ". ".join(one_line(str(error)).split(". ")[:2]).rstrip(".")
    said = said if re.match("out of memory", said) else f"out of memory{f' ({said})' if said else ''}"
    return f"{said}; `python -m grpo_lab.memory` plans what a run takes, and says what to turn down"
