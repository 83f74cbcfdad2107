"""Predictions that a reader makes before seeing a result: asked by a widget, drawn with the truth, and counted.

To predict a number, the reader chooses a range that should contain the truth four times in five. To predict anything
else, the reader chooses one of several texts. On a page that is only read, and in a test that runs a notebook, the
question is shown without a widget.

Run All gives every answer away before the reader can predict. It is not prevented, since test machines, and teachers
preparing a class, run all cells of a new kernel. Instead a warning is shown in place of each widget, and once before
the first result.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from math import comb
from typing import Any

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.base.display import escape_tags, in_ipython, say
from grpo_lab.base.language import Phrase, _, counted, fill

COVERAGE = 0.8  # probability with which a range of the reader should contain the truth
MIN_RANGES = 5  # with fewer ranges, calibration is not judged
SLIDER_STEPS = 100  # number of steps from the low to the high end of a slider

# The predictions of the notebook by question, so that a cell that runs twice replaces its prediction.
_predictions: dict[str, "Prediction"] = {}
RUN_ALL = "Run All tells this answer before you could predict it, and those below."
HOW_TO_PREDICT = "To predict first, choose Kernel → Restart Kernel, then run the cells one by one with Shift+Enter."


def predict(
    question: str,
    low: int | float | None = None,
    high: int | float | None = None,
    *,
    choices: Sequence[str] | None = None,
) -> "Prediction":
    """Ask the reader to predict a number between `low` and `high`, or one of the `choices`.

    Args:
        question: The question in one sentence. Asking it again replaces the earlier prediction.
        low: The lower end of the slider, if the answer is a number.
        high: The upper end of the slider.
        choices: At least two different texts, if the answer is one of them; None if it is a number.

    Returns:
        The prediction. Call its `truth` when the answer is known, and `draw` to show a range in a figure.
    """
    prediction: Prediction
    if choices is not None:
        prediction = ChoicePrediction(question, tuple(choices))
    elif low is not None and high is not None:
        prediction = RangePrediction(question, float(low), float(high))
    else:
        raise InputError("low", low, "expected numbers for low and high, or choices")
    earlier = _predictions.get(question)
    if earlier is not None and earlier.is_closed:
        prediction.close(earlier.guess())
    _predictions[question] = prediction
    prediction.ask()
    return prediction


class Prediction(ABC):
    """A question to the reader, with the guess and, once it is known, the truth.

    A subclass, `RangePrediction` or `ChoicePrediction`, defines the widget, and how a guess is compared and described.
    A prediction is closed when the truth is shown. From then on neither the widget nor running the cell again changes
    the guess.

    Attributes:
        question: One sentence; also the key by which the notebook's predictions are stored.
        hint: What the reader can answer; shown after the question.
        widget: The input; None outside a live notebook.
        display_handle: IPython's handle of the widget on the page, to replace it; None without a widget.
        true_value: The truth; None until it is known.
        is_closed: Whether the guess is final.
        was_run_all: Whether Run All showed the truth before the reader could predict.
    """

    def __init__(self, question: str, hint: str):
        self.question = question
        self.hint = hint
        self.widget: Any = None
        self.display_handle: Any = None
        self.true_value: Any = None
        self.is_closed = False
        self.was_run_all = False
        self._shown_at: datetime | None = None  # when the question was shown
        self._final_guess: Any = None  # guess at the time of closing

    @abstractmethod
    def make_widget(self) -> Any:
        """Return the widget of ipywidgets with which the reader answers."""

    @abstractmethod
    def current_guess(self) -> Any:
        """Return the guess that the widget shows now; None if there is no guess or no widget."""

    @abstractmethod
    def check_true_value(self, value: Any) -> Any:
        """Return the true value as it is stored. Raise ValueError if the reader could not have guessed it."""

    @abstractmethod
    def format_value(self, value: Any) -> str:
        """Return a value as text."""

    @abstractmethod
    def is_right(self) -> bool:
        """Return True if the guess agrees with the true value; both have to exist."""

    @abstractmethod
    def outcome_sentence(self, guess: Any) -> Phrase:
        """Return a sentence that says what the guess was, and whether it is right."""

    @classmethod
    @abstractmethod
    def summary(cls, right: int, total: int) -> Phrase:
        """Return a sentence on all predictions of this kind: `right` of `total` are right."""

    def ask(self) -> None:
        """Show the question, with the widget in a live notebook; a closed prediction is shown with a note instead."""
        head, question = _("Predict."), f"{_(self.question)} {_(self.hint)}"
        say(f"**{head}** {escape_tags(question)}", f"{head} {question}")
        if self.is_closed:
            note = _("You have seen the truth: what you guessed before it counts, and nothing after it.")
            say(note)
        elif in_ipython():
            from IPython.display import display

            self._shown_at = datetime.now(UTC)
            self.widget = self.make_widget()
            self.display_handle = display(self.widget, display_id=True)

    def close(self, guess: Any) -> None:
        """Make this guess the final one; None means that there was no guess."""
        self._final_guess, self.is_closed = guess, True

    def guess(self) -> Any:
        """Return the guess that counts: the final guess if the prediction is closed, else the current one, or None."""
        return self._final_guess if self.is_closed else self.current_guess()

    def truth(self, value: Any) -> None:
        """Show the question, the truth and, if there was a guess, whether it is right; then close the prediction.

        Raises:
            ValueError: if the value could not have been guessed.
        """
        self.true_value = self.check_true_value(value)
        if not self.is_closed:
            if self._was_sent_before_question():
                self._warn_of_run_all()
            self.close(self.current_guess())
        guess, truth = self.guess(), _(fill("Truth: {0}.", self.format_value(self.true_value)))
        verdict = "" if guess is None else " " + _(self.outcome_sentence(guess))
        question = _(self.question)
        say(
            f"*({escape_tags(question)})* **{escape_tags(truth)}**{escape_tags(verdict)}",
            f"({question}) {truth}{verdict}",
        )

    def _was_sent_before_question(self) -> bool:
        """Return True if there is no guess, and the running cell was sent before the question was shown."""
        if self._shown_at is None or self.current_guess() is not None:
            return False
        sent = _sent_at()
        return sent is not None and sent < self._shown_at

    def _warn_of_run_all(self) -> None:
        """Replace the widget, which no longer counts, by a warning; the first time, show it in this cell, too."""
        warning = f"{_(RUN_ALL)} {_(HOW_TO_PREDICT)}"
        if not any(prediction.was_run_all for prediction in _predictions.values()):
            say(f"**{escape_tags(warning)}**", warning)
        self.was_run_all = True
        if self.display_handle is not None:
            from IPython.display import Markdown

            self.display_handle.update(Markdown(f"**{escape_tags(warning)}**"))


def _sent_at() -> datetime | None:
    """Return when the browser sent the running cell; None outside JupyterLab, since only JupyterLab names the cell."""
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    request = kernel.get_parent() if kernel is not None else {}
    return request["header"]["date"] if "cellId" in request.get("metadata", {}) else None


class RangePrediction(Prediction):
    """The prediction of a number: the guess is a range that contains it with probability `COVERAGE`."""

    def __init__(self, question: str, low: float, high: float):
        hint = "*(Between {0} and {1}: choose a range that you are {2} sure of.)*"
        super().__init__(question, fill(hint, f"{low:g}", f"{high:g}", f"{COVERAGE:.0%}"))
        self.low, self.high = low, high
        has_whole_steps = float(low).is_integer() and float(high).is_integer() and high - low >= SLIDER_STEPS
        step = (high - low) / SLIDER_STEPS
        self.step = max(1, round(step)) if has_whole_steps else step

    def make_widget(self) -> Any:
        from ipywidgets import FloatRangeSlider, Layout

        number_format = ".0f" if self.step >= 1 else ".2f" if self.step >= 0.01 else ".3g"
        ends = {"min": self.low, "max": self.high, "value": (self.low, self.high), "step": self.step}
        look = {"readout_format": number_format, "description": _("from, to"), "layout": Layout(width="480px")}
        return FloatRangeSlider(**ends, **look, continuous_update=False)

    def current_guess(self) -> tuple[float, float] | None:
        """Return the chosen range; None if the slider was not moved, since the whole slider is not a guess."""
        value = None if self.widget is None else self.widget.value
        return None if value == (self.low, self.high) else value

    def check_true_value(self, value: Any) -> float:
        value = float(value)
        if not self.low <= value <= self.high:
            raise InputError("value", value, f"expected {self.low} to {self.high}, which is what could be guessed")
        return value

    def format_value(self, value: float) -> str:
        return f"{value:.3g}"

    def is_right(self) -> bool:
        """Return True if the range, extended by half a step of the slider at either end, contains the true value."""
        low, high = self.guess()
        return low - self.step / 2 <= self.true_value <= high + self.step / 2

    def outcome_sentence(self, guess: tuple[float, float]) -> Phrase:
        verdict: str = "that holds it"
        if not self.is_right():
            verdict = fill("the truth is {0}", "lower" if self.true_value < guess[0] else "higher")
        return fill("You said {0} to {1}: {2}.", *map(self.format_value, guess), verdict)

    @classmethod
    def summary(cls, right: int, total: int) -> Phrase:
        """Return a sentence on how many ranges contain the truth, and how many should for good calibration."""
        text = "Of {0}, {1} held the truth; {2} of {3} is {4}."
        sentence = fill(text, counted(total, "range"), right, f"{COVERAGE:.0%}", total, f"{COVERAGE * total:.1f}")
        if total < MIN_RANGES:
            return sentence
        probability_of_so_few = sum(
            comb(total, k) * COVERAGE**k * (1 - COVERAGE) ** (total - k) for k in range(right + 1)
        )
        if probability_of_so_few < 0.1:
            return sentence + " Your ranges were too narrow: you were surer than you had reason to be."
        return sentence + " That agrees with being well calibrated."

    def draw(self, ax, orient: str = "y") -> None:
        """Draw the guess as a strip and the truth, once it is known, as a line; draw nothing without a guess.

        Args:
            ax: The matplotlib axes.
            orient: The axis that shows the predicted number, "x" or "y".
        """
        guess = self.guess()
        if guess is None:
            return
        from grpo_lab.teaching.plots import OKABE_ITO

        (ax.axhspan if orient == "y" else ax.axvspan)(*guess, color=OKABE_ITO["orange"], alpha=0.18, linewidth=0)
        if self.true_value is not None:
            (ax.axhline if orient == "y" else ax.axvline)(self.true_value, color=OKABE_ITO["orange"], linestyle=":")
        position = {"xy": (1, guess[1]), "xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        if orient == "x":
            position = {"xy": (guess[1], 1), "xycoords": ("data", "axes fraction"), "ha": "left", "va": "top"}
        ax.annotate("your guess", **position, color="#8A5A00", fontsize=9)


class ChoicePrediction(Prediction):
    """The prediction of one of several texts."""

    def __init__(self, question: str, choices: tuple[str, ...]):
        super().__init__(question, "*({})*".format(" / ".join(choices).replace("*", r"\*")))
        self.choices = choices

    def make_widget(self) -> Any:
        from ipywidgets import Layout, RadioButtons

        options = [(_(choice), choice) for choice in self.choices]
        return RadioButtons(options=options, value=None, layout=Layout(width="max-content"))

    def current_guess(self) -> str | None:
        return None if self.widget is None else self.widget.value

    def check_true_value(self, value: Any) -> str:
        check_choice("value", value, self.choices)
        return value

    def format_value(self, value: str) -> str:
        return value

    def is_right(self) -> bool:
        return self.guess() == self.true_value

    def outcome_sentence(self, guess: str) -> Phrase:
        return fill("You said {0}: {1}.", guess, "right" if self.is_right() else "wrong")

    @classmethod
    def summary(cls, right: int, total: int) -> Phrase:
        """Return how many of the choices were right."""
        return fill("Of {0}, {1} {2} right.", counted(total, "choice"), right, "was" if right == 1 else "were")


def forget_predictions() -> None:
    """Forget all predictions, as in a new kernel."""
    _predictions.clear()


def how_well_did_you_predict() -> None:
    """Show how many predictions of the notebook were right, and whether the ranges were wide enough."""
    answered = [p for p in _predictions.values() if p.true_value is not None and p.guess() is not None]
    if not answered:
        was_run_all = any(prediction.was_run_all for prediction in _predictions.values())
        remedy = f" {_(HOW_TO_PREDICT)}" if was_run_all else ""
        return say(_("No predictions were made in this run.") + remedy)
    sentences = fill("You answered {0} of {1} predictions.", len(answered), len(_predictions))
    for kind in (RangePrediction, ChoicePrediction):
        of_kind = [prediction for prediction in answered if isinstance(prediction, kind)]
        if of_kind:
            right = sum(prediction.is_right() for prediction in of_kind)
            sentences += " " + kind.summary(right, len(of_kind))
    return say(_(sentences))
