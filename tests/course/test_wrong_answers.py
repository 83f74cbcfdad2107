"""Wrong answers written as a difference to the right one."""

from grpo_lab.course.exercises import EXERCISES


def test_every_difference_still_fits_its_reference():
    for exercise in EXERCISES.values():
        args, kwargs = exercise.cases[0].build(0)
        for mistake in exercise.misconceptions:
            if mistake.wrong.__name__.startswith("changed_"):
                try:
                    mistake.wrong(*args, **kwargs)
                except Exception as error:
                    assert "expected it once" not in str(error), f"{exercise.name}, {mistake.name}: {error}"
