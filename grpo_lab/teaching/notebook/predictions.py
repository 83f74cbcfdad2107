"""Predictions, said before the answer is seen: as an input, drawn beside the truth, and counted at the end.

For a number you choose a range that you trust to hold the truth four times in five; for anything else, one of several
choices. A page that is only read, and a test that runs a notebook, show the question and take no answer. Who runs all
cells at once is warned, where the question stood and before the first result, and not stopped: a teacher who prepares a
class runs all cells of a new kernel, and so do machines.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import comb

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.base.display import in_ipython, prose, say
from grpo_lab.base.language import Phrase, _, counted, fill

SURE = 0.8  # how often a range is meant to hold the truth
FEWEST = 5  # ranges that allow a word on calibration
STEPS = 100  # of a slider, from its low to its high end

_predictions: dict[str, "Prediction"] = {}  # by their question, so that a cell that runs twice asks once
RUN_ALL = "Run All tells this answer before you could predict it, and those below."
HOW_TO_PREDICT = "To predict first, choose Kernel → Restart Kernel, then run the cells one by one with Shift+Enter."


def predict(
    question: str,
    low: int | float | None = None,
    high: int | float | None = None,
    *,
    choices: Sequence[str] | None = None,
) -> "Prediction":
    """Ask before the answer is seen: for a number between `low` and `high`, or for one of the `choices`.

    Args:
        question: one sentence. It is shown, so the text around need not repeat it.
        low, high: the ends of the slider.
        choices: at least two different texts.

    Returns:
        The prediction: call its `truth` when the answer is known, and `draw` to see a range in a figure.
    """
    prediction = Range(question, float(low), float(high)) if choices is None else Choice(question, tuple(choices))
    earlier = _predictions.get(question)
    if earlier is not None and earlier.closed:
        prediction.close(earlier.guess())
    _predictions[question] = prediction
    prediction.ask()
    return prediction


class Prediction:
    """The base of ranges and choices; `predict` makes them.

    It is closed once the truth was told: what is chosen afterwards, in this cell or in another run of it, is no guess.
    """

    widget = None  # only in a live notebook
    display_handle = None  # of the widget on the page
    answer = None  # once the truth is known
    closed = False
    run_all = False  # told by Run All, before anybody could predict
    _asked_at = None  # when the question was shown
    _final_guess = None  # that of the moment it was closed

    def __init__(self, question: str):
        self.question = question

    def ask(self) -> None:
        head, question = _("Predict."), f"{_(self.question)} {_(self.hint)}"
        say(f"**{head}** {prose(question)}", f"{head} {question}")
        if self.closed:
            note = _("You have seen the truth: what you guessed before it counts, and nothing after it.")
            say(note)
        elif in_ipython():
            from IPython.display import display

            self._asked_at = datetime.now(UTC)
            self.widget = self.make_widget()
            self.display_handle = display(self.widget, display_id=True)

    def close(self, guess) -> None:
        """Take this guess, or None, for the last one."""
        self._final_guess, self.closed = guess, True

    def guess(self):
        """The guess that counts; None without one."""
        return self._final_guess if self.closed else self.current_guess()

    def truth(self, value) -> None:
        """Say to which question, what is true, and how the guess did, if there was one; later ones do not count.

        Raises:
            ValueError: for a value that could not have been guessed.
        """
        self.answer = self.checked(value)
        if not self.closed:
            if self._is_run_all():
                self._warn()
            self.close(self.current_guess())
        guess, truth = self.guess(), _(fill("Truth: {0}.", self.written(self.answer)))
        verdict = "" if guess is None else " " + _(self.outcome_sentence(guess))
        question = _(self.question)
        say(f"*({prose(question)})* **{prose(truth)}**{prose(verdict)}", f"({question}) {truth}{verdict}")

    def _is_run_all(self) -> bool:
        """Whether the cell that runs was on its way before anybody could see the question."""
        if self._asked_at is None or self.current_guess() is not None:
            return False
        sent = _sent_at()
        return sent is not None and sent < self._asked_at

    def _warn(self) -> None:
        """In the place of the widget, which would no longer count; the first time also before the result."""
        warning = f"{_(RUN_ALL)} {_(HOW_TO_PREDICT)}"
        if not any(prediction.run_all for prediction in _predictions.values()):
            say(f"**{prose(warning)}**", warning)
        self.run_all = True
        if self.display_handle is not None:
            from IPython.display import Markdown

            self.display_handle.update(Markdown(f"**{prose(warning)}**"))


def _sent_at() -> datetime | None:
    """When the reader's browser sent the cell that runs; None where nobody watches: only JupyterLab names the cell."""
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    request = kernel.get_parent() if kernel is not None else {}
    return request["header"]["date"] if "cellId" in request.get("metadata", {}) else None


class Range(Prediction):
    """The prediction of a number: the guess is a range that holds it with probability `SURE`."""

    def __init__(self, question: str, low: float, high: float):
        super().__init__(question)
        self.low, self.high = low, high
        whole = float(low).is_integer() and float(high).is_integer() and high - low >= STEPS
        self.step = max(1, round((high - low) / STEPS)) if whole else (high - low) / STEPS
        hint = "*(Between {0} and {1}: choose a range that you are {2} sure of.)*"
        self.hint = fill(hint, f"{low:g}", f"{high:g}", f"{SURE:.0%}")

    def make_widget(self):
        from ipywidgets import FloatRangeSlider, Layout

        form = ".0f" if self.step >= 1 else ".2f" if self.step >= 0.01 else ".3g"
        ends = {"min": self.low, "max": self.high, "value": (self.low, self.high), "step": self.step}
        look = {"readout_format": form, "description": _("from, to"), "layout": Layout(width="480px")}
        return FloatRangeSlider(**ends, **look, continuous_update=False)

    def current_guess(self) -> tuple[float, float] | None:
        """The range; None where the slider was not touched, since everything between its ends is no guess."""
        value = None if self.widget is None else self.widget.value
        return None if value == (self.low, self.high) else value

    def checked(self, value) -> float:
        value = float(value)
        if not self.low <= value <= self.high:
            raise InputError("value", value, f"expected {self.low} to {self.high}, which is what could be guessed")
        return value

    def written(self, value: float) -> str:
        return f"{value:.3g}"

    def outcome_sentence(self, guess: tuple[float, float]) -> str:
        """Say what the guess was, and whether it holds the truth."""
        verdict = "that holds it"
        if not self.is_right():
            verdict = fill("the truth is {0}", "lower" if self.answer < guess[0] else "higher")
        return fill("You said {0} to {1}: {2}.", *map(self.written, guess), verdict)

    def is_right(self) -> bool:
        low, high = self.guess()
        return low - self.step / 2 <= self.answer <= high + self.step / 2

    def draw(self, ax, orient: str = "y") -> None:
        """Mark the guess on the axes as a strip, and the truth, once it is known, as a line; nothing without a guess.

        Args:
            ax: matplotlib axes.
            orient: the axis that the guessed number belongs to, "x" or "y".
        """
        guess = self.guess()
        if guess is None:
            return
        from grpo_lab.teaching.plots import OKABE_ITO

        (ax.axhspan if orient == "y" else ax.axvspan)(*guess, color=OKABE_ITO["orange"], alpha=0.18, linewidth=0)
        if self.answer is not None:
            (ax.axhline if orient == "y" else ax.axvline)(self.answer, color=OKABE_ITO["orange"], linestyle=":")
        where = {"xy": (1, guess[1]), "xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        if orient == "x":
            where = {"xy": (guess[1], 1), "xycoords": ("data", "axes fraction"), "ha": "left", "va": "top"}
        ax.annotate("your guess", **where, color="#8A5A00", fontsize=9)


class Choice(Prediction):
    """The prediction of one of several texts."""

    def __init__(self, question: str, choices: tuple[str, ...]):
        super().__init__(question)
        self.choices = choices
        self.hint = "*({})*".format(" / ".join(choices).replace("*", r"\*"))

    def make_widget(self):
        from ipywidgets import Layout, RadioButtons

        options = [(_(choice), choice) for choice in self.choices]
        return RadioButtons(options=options, value=None, layout=Layout(width="max-content"))

    def current_guess(self) -> str | None:
        return None if self.widget is None else self.widget.value

    def checked(self, value) -> str:
        check_choice("value", value, self.choices)
        return value

    def written(self, value: str) -> str:
        return value

    def is_right(self) -> bool:
        return self.guess() == self.answer

    def outcome_sentence(self, guess: str) -> str:
        return fill("You said {0}: {1}.", guess, "right" if self.is_right() else "wrong")


def forget_predictions() -> None:
    """Forget all predictions, as if none had been made."""
    _predictions.clear()


def how_well_did_you_predict() -> None:
    """One line on all predictions of the notebook: how many held, and whether the ranges were wide enough."""
    answered = [p for p in _predictions.values() if p.answer is not None and p.guess() is not None]
    if not answered:
        how = f" {_(HOW_TO_PREDICT)}" if any(prediction.run_all for prediction in _predictions.values()) else ""
        return say(_("No predictions were made in this run.") + how)
    ranges = [p for p in answered if isinstance(p, Range)]
    sentences = fill("You answered {0} of {1} predictions.", len(answered), len(_predictions))
    if ranges:
        sentences += " " + _calibration(sum(p.is_right() for p in ranges), len(ranges))
    if choices := [p for p in answered if not isinstance(p, Range)]:
        right = sum(p.is_right() for p in choices)
        verb = "was" if right == 1 else "were"
        sentences += " " + fill("Of {0}, {1} {2} right.", counted(len(choices), "choice"), right, verb)
    return say(_(sentences))


def _calibration(hits: int, n: int) -> Phrase:
    """Compare the number of ranges that hold the truth, of n, with that of somebody who is well calibrated."""
    text = "Of {0}, {1} held the truth; {2} of {3} is {4}."
    sentence = fill(text, counted(n, "range"), hits, f"{SURE:.0%}", n, f"{SURE * n:.1f}")
    if n < FEWEST:
        return sentence
    probability_of_so_few = sum(comb(n, k) * SURE**k * (1 - SURE) ** (n - k) for k in range(hits + 1))
    if probability_of_so_few < 0.1:
        return sentence + " Your ranges were too narrow: you were surer than you had reason to be."
    return sentence + " That agrees with being well calibrated."
