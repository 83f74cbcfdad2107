"""Predictions: a question as text on static pages, and in a live notebook a guess that is compared with the truth."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from grpo_lab.teaching.notebook import how_well_did_you_predict, predict, predictions
from grpo_lab.teaching.notebook.predictions import forget_predictions


@pytest.fixture(autouse=True)
def new_session():
    forget_predictions()
    yield
    forget_predictions()


def answered(prediction, value):
    """Set the value of the widget, as a reader does in a live notebook."""
    prediction.widget = SimpleNamespace(value=value)
    return prediction


def printed(capsys) -> str:
    return capsys.readouterr().out.strip()


def test_prediction_without_a_kernel_is_text_with_the_truth(capsys):
    share = predict("Which share?", 0, 1)
    assert printed(capsys) == "Predict. Which share? *(Between 0 and 1: choose a range that you are 80% sure of.)*"
    share.truth(0.25)
    assert printed(capsys) == "(Which share?) Truth: 0.25."
    how_well_did_you_predict()
    assert printed(capsys) == "No predictions were made in this run."


def test_a_range_is_judged_by_whether_it_holds_the_truth(capsys):
    for guess, verdict in [
        ((0.2, 0.3), "that holds it"),
        ((0.3, 0.9), "the truth is lower"),
        ((0.0, 0.2), "the truth is higher"),
    ]:
        forget_predictions()
        answered(predict("Which share?", 0, 1), guess).truth(0.25)
        assert printed(capsys).endswith(f"You said {guess[0]:.3g} to {guess[1]:.3g}: {verdict}.")
    forget_predictions()
    answered(predict("Which share?", 0, 1), (0.0, 1.0)).truth(0.25)  # a slider that was not moved is no guess
    assert "You said" not in printed(capsys)


def test_run_all_warns_before_the_first_result_and_at_each_question(monkeypatch, capsys):
    """There is no warning if the cell was sent after its question was shown, or if the question has a guess."""
    hour = [datetime(2026, 1, 1, h, tzinfo=UTC) for h in range(3)]
    for sent, guess in ((hour[2], (0.0, 1.0)), (hour[0], (0.2, 0.3)), (None, (0.0, 1.0))):
        forget_predictions()
        prediction = answered(predict("Which share?", 0, 1), guess)
        monkeypatch.setattr(prediction, "_shown_at", hour[1])
        monkeypatch.setattr(predictions, "_sent_at", lambda sent=sent: sent)
        prediction.truth(0.25)
    assert "Run All" not in printed(capsys)
    monkeypatch.setattr(predictions, "_sent_at", lambda: hour[0])
    forget_predictions()
    shown = []
    for question in ("Which share?", "And then?"):
        prediction = answered(predict(question, 0, 1), (0.0, 1.0))
        monkeypatch.setattr(prediction, "_shown_at", hour[1])
        prediction.display_handle = SimpleNamespace(update=lambda text: shown.append(text.data))
        prediction.truth(0.25)
        assert prediction.is_closed
        assert prediction.guess() is None
    text = printed(capsys)
    assert text.count("Run All") == 1
    assert text.index("Run All") < text.index("Truth: 0.25.")
    assert len(shown) == 2
    assert all("Restart Kernel" in warning for warning in shown)
    how_well_did_you_predict()
    assert printed(capsys).startswith("No predictions were made in this run. To predict first, choose Kernel")


def test_a_range_includes_its_ends_and_a_choice_is_right_or_wrong(capsys):
    """The handles of a slider are at hundredths of its length, and the truth may be between two of them."""
    for value, is_inside in ((0.334, True), (0.336, False)):
        forget_predictions()
        prediction = answered(predict("How many?", 0, 1), (0.1, 0.33))
        prediction.truth(value)
        assert prediction.is_right() is is_inside
    for chosen, verdict in (("a", "right"), ("b", "wrong")):
        forget_predictions()
        answered(predict("Which?", choices=("a", "b")), chosen).truth("a")
        assert printed(capsys).endswith(f"Truth: a. You said {chosen}: {verdict}.")


def test_a_truth_that_nobody_could_have_guessed_is_refused():
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="value is .*; expected 0.0 to 1.0, which is what could be guessed"):
            predict("Which share?", 0, 1).truth(wrong)
    with pytest.raises(ValueError, match="value is 'c'; expected one of 'a', 'b'"):
        predict("Which?", choices=("a", "b")).truth("c")


def test_calibration_counts_ranges_that_contain_the_truth(capsys):
    """Ranges are called too narrow if the number of hits is below the 10 % quantile of good calibration."""
    for hits, n, word in [(0, 2, None), (2, 5, "too narrow"), (3, 5, "agrees")]:
        forget_predictions()
        for index in (*range(n), n - 1):  # a cell that runs twice makes one prediction
            answered(predict(f"Number {index}?", 0, 1), (0.2, 0.3) if index < hits else (0.3, 0.4)).truth(0.25)
        answered(predict("Which?", choices=("a", "b")), "b").truth("a")
        predict("Never answered?", 0, 1).truth(0.5)
        capsys.readouterr()
        how_well_did_you_predict()
        text = printed(capsys)
        assert f"You answered {n + 1} of {n + 2} predictions." in text
        assert f"{hits} held the truth" in text
        assert ("too narrow" in text, "agrees" in text) == (word == "too narrow", word == "agrees")


def test_the_guess_is_drawn_beside_the_truth_and_nothing_without_a_guess():
    plt = pytest.importorskip("matplotlib.pyplot")
    for axis, orient in enumerate("xy"):
        _, (empty, filled) = plt.subplots(1, 2)
        predict("Unanswered?", 0, 1).draw(empty, orient)
        assert not empty.patches
        assert not empty.lines
        assert not empty.texts
        share = answered(predict("Which share?", 0, 1), (0.25, 0.5))
        share.truth(0.75)
        share.draw(filled, orient)
        (box,), (line,) = filled.patches, filled.lines
        assert filled.transData.inverted().transform(box.get_extents())[:, axis] == pytest.approx([0.25, 0.5])
        assert set((line.get_xdata(), line.get_ydata())[axis]) == {0.75}
    plt.close("all")


def test_a_tag_in_a_question_stays_to_be_seen(monkeypatch):
    texts = []
    monkeypatch.setattr(predictions, "say", lambda markdown, text: texts.append((markdown, text)))
    prediction = predict("What is P(<think>), and what `P(<answer>)`?", choices=("<think>", "other"))
    prediction.truth("<think>")
    (question, plain), (truth, _) = texts
    assert "P(&lt;think>)" in question
    assert "`P(<answer>)`" in question
    assert "(&lt;think> / other)" in question
    assert "P(<think>)" in plain
    assert truth.endswith(" **Truth: &lt;think>.**")
    assert truth.startswith("*(What is P(&lt;think>), and what `P(<answer>)`?)*"), "it names its question"


def test_a_guess_after_the_truth_does_not_count(capsys):
    """The guess stays when the widget is changed later, and when the cell of the question runs again."""
    share = answered(predict("Which share?", 0, 1), (0.5, 0.6))
    share.truth(0.25)
    share.widget.value = (0.2, 0.3)
    again = predict("Which share?", 0, 1)
    assert "what you guessed before it counts" in printed(capsys)
    assert again.widget is None
    answered(again, (0.2, 0.3)).truth(0.25)
    assert "You said 0.5 to 0.6: the truth is lower." in printed(capsys)
    untouched = answered(predict("Which?", choices=("a", "b")), None)
    untouched.truth("a")
    untouched.widget.value = "a"
    assert share.guess() == again.guess() == (0.5, 0.6)
    assert untouched.guess() is None
    how_well_did_you_predict()
    assert "You answered 1 of 2 predictions. Of 1 range, 0 held the truth" in printed(capsys)


def test_a_guess_may_change_until_the_truth(capsys):
    first = answered(predict("Which share?", 0, 1), (0.5, 0.6))
    first.widget.value = (0.2, 0.3)
    again = predict("Which share?", 0, 1)  # the truth has not been shown yet
    answered(again, (0.1, 0.4)).truth(0.25)
    assert "You said 0.1 to 0.4: that holds it." in printed(capsys)
