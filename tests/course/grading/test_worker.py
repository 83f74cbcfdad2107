"""The cells of a submission run in one namespace, in which the student's functions count."""

from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.grading.worker import Channel, run_cells


class NoChannel(Channel):
    def __init__(self): ...

    def send(self, message): ...


def names_of(*sources):
    return run_cells([Cell(n, source) for n, source in enumerate(sources)], NoChannel())


def test_importing_a_written_function_keeps_the_students_version():
    own = "def extract_answer(text):\n    return 'mine'"
    later = (
        "from grpo_lab.rewards import extract_answer, normalise_text\ndef use(text):\n    return extract_answer(text)"
    )
    names = names_of(own, later)
    assert names["extract_answer"]("x") == "mine"
    assert names["use"]("x") == "mine"
    assert names["normalise_text"]("a  b") == "a b"


def test_the_last_definition_counts_and_a_cell_that_fails_loses_only_itself():
    names = names_of("f = lambda: 1", "def f():\n    return 2", "1 / 0", "g = f")
    assert names["f"]() == 2
    assert names["g"]() == 2


def test_a_cell_defines_in_the_grading_what_it_defines_in_jupyter():
    """The same magics are tried in IPython by `test_a_magic_in_a_cell_is_no_cell_mismatch`."""
    answer = "def f():\n    return {}"
    for magic in ("%%time", "%%capture output", "%%prun -q", "\n%%time\n%%capture"):
        names = names_of(answer.format(1), f"{magic}\n{answer.format(2)}")
        assert names["f"]() == 2, magic
    for magic in ("%%timeit -n 1 -r 1", "%%writefile f.py", "\n%%bash"):
        names = names_of(answer.format(1), f"{magic}\n{answer.format(2)}")
        assert names["f"]() == 1, magic
