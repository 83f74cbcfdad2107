"""An exercise refuses mistakes that share a name or have no text, and makes functions from changed lines."""

from copy import deepcopy
from dataclasses import replace

import pytest

from grpo_lab.course import exercises
from grpo_lab.course.exercise import wrong_function, wrong_lines
from tests.course.small_exercise import MEAN, as_sum, scaled_mean


def test_mistakes_have_different_names():
    with pytest.raises(ValueError, match="mistakes of scaled_mean have the name as-sum more than once"):
        replace(MEAN, mistakes=(*MEAN.mistakes, wrong_function("as-sum", as_sum)))


def test_wrong_lines_are_lines_of_the_reference_of_the_exercise():
    wrong = wrong_lines("no-scale", {"1.92": "secret_mean = torch.where(mask, values, 0).sum(-1) / secret_count"})
    (arguments, settings) = MEAN.cases[1].build(0)
    with pytest.raises(TypeError, match="no exercise has given it a reference"):
        wrong.function(*arguments, **settings)
    mistake = replace(MEAN, mistakes=(wrong,)).mistake("no-scale")
    assert mistake.function(*arguments, scale=2.0).equal(scaled_mean(*arguments))


def test_a_mistake_of_a_lesson_without_a_text_is_refused(monkeypatch):
    texts = deepcopy(exercises.texts_of("02"))
    del texts["rloo_advantages"]["explanations"]["no-centre"]
    monkeypatch.setattr(exercises, "_loaded", {})
    monkeypatch.setattr(exercises, "texts_of", lambda notebook: texts)
    with pytest.raises(ValueError, match="no explanation of no-centre, a mistake of rloo_advantages"):
        exercises.lesson_exercise("rloo_advantages")
