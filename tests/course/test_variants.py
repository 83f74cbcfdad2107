"""Variants: every formula equals a literal loop, check and grading agree, and the package has no variant's line."""

import ast
import csv
import itertools
import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
import yaml

import grpo_lab
from grpo_lab.base.checks import InputError
from grpo_lab.base.language import translate
from grpo_lab.course import check, exercises, hint
from grpo_lab.course.__main__ import main
from grpo_lab.course.checking.judging import judge
from grpo_lab.course.checking.outcome import equal_outcomes
from grpo_lab.course.checking.run_cases import expected_outcomes, run_student
from grpo_lab.course.exercises import ASSIGNMENTS
from grpo_lab.course.grading.grade import grade_answer
from grpo_lab.course.grading.run_notebook import ExerciseRun
from grpo_lab.course.grading.submission import written_answer
from grpo_lab.course.release.notebooks import notebook_text
from grpo_lab.course.stub import solution_body, stub_head
from grpo_lab.course.variant import (
    LESSON_MISTAKE,
    VARIANTS,
    ClassFormula,
    ClassKey,
    class_variant,
    key_text,
    read_variants,
    results_of,
    variant_of,
)
from grpo_lab.formulas.source import read_equations
from grpo_lab.kl import kl_estimate
from tests.course.classroom import file_name, run, solution, submit
from tests.course.proof.trials import outcomes

KEY = ClassKey("a class in spring")
LISTS = read_variants(VARIANTS)
ENTRIES = [(name, index, entry) for name, entries in LISTS.items() for index, entry in enumerate(entries)]


def drawn(entry):
    """Yield the drawn number and the entry with it, for each number that the entry allows; None without a number."""
    words = entry.draw
    for values in itertools.product(*words.values()):
        filled = entry
        for word, value in zip(words, values, strict=True):
            filled = filled.with_number(word, value)
        yield (*values, None)[0], filled


@pytest.fixture
def at_home(monkeypatch):
    """An empty registry of variants, which a student's notebook fills; it is restored afterwards."""
    monkeypatch.setattr(exercises, "_class_exercises", {})


# Each formula as a loop over plain numbers. The first argument is the number that was drawn, the others are those of
# the function. A loop returns None for arguments that the formula does not concern.
def tsallis_entropy(order, logits, temperature=1.0):
    def entropy_of_row(row):
        powers = [math.exp((z - max(row)) / temperature) for z in row]
        return (1 - sum((p / sum(powers)) ** order for p in powers)) / (order - 1)

    return [[entropy_of_row(row) for row in rows] for rows in logits]


def advantages_by_power_of_distances(power, rewards, scale="group", ddof=1, eps=1e-4):
    def scaled_row(row):
        centred = [r - sum(row) / len(row) for r in row]
        spread = (sum(abs(c) ** power for c in centred) / (len(row) - ddof)) ** (1 / power)
        return [c / (spread + eps) for c in centred]

    return [scaled_row(row) for row in rewards] if scale == "group" else None


def advantages_from_mid_range(_, rewards, scale="group", ddof=1, eps=1e-4):
    def scaled_row(row):
        centred = [r - (min(row) + max(row)) / 2 for r in row]
        spread = math.sqrt(sum(c**2 for c in centred) / (len(row) - ddof))
        return centred if scale == "none" else [c / (spread + eps) for c in centred]

    return [scaled_row(row) for row in rewards] if scale != "batch" else None


def without(row, i):
    return row[:i] + row[i + 1 :]


def advantages_over_best_other(_, rewards):
    return [[r - max(without(row, i)) for i, r in enumerate(row)] for row in rewards]


def advantages_over_middle_of_others(_, rewards):
    return [[r - (min(without(row, i)) + max(without(row, i))) / 2 for i, r in enumerate(row)] for row in rewards]


def k3_of_order(order, logp, ref_logp, estimator="k3"):
    if estimator not in ("k3", "k3+"):
        return None
    return _each(lambda d: (math.exp(order * d) - 1) / order**2 - d / order, logp, ref_logp)


def k2_of_scale(scale, logp, ref_logp, estimator="k3"):
    return (
        _each(lambda d: 0.5 * ((math.exp(scale * d) - 1) / scale) ** 2, logp, ref_logp) if estimator == "k2" else None
    )


def _each(function, logp, ref_logp):
    return [[function(b - a) for a, b in zip(*rows, strict=True)] for rows in zip(logp, ref_logp, strict=True)]


def sequence_ratio(power, logp, old_logp, mask, level="token"):
    def ratio_of_row(new, old, counts):
        moved = [n - o for n, o, c in zip(new, old, counts, strict=True) if c]
        return [math.exp(sum(moved) / max(len(moved), 1) ** power)]

    return [ratio_of_row(*rows) for rows in zip(logp, old_logp, mask, strict=True)] if level == "sequence" else None


def clip_in_logarithms(power, ratio, advantages, epsilon=0.2, epsilon_high=None, delta=None):
    def objective(r, a):
        bound = math.log(1 + (epsilon if epsilon_high is None else epsilon_high)) * power
        clipped = math.exp(min(max(math.log(max(r, 1e-300)), -power * math.log(1 + epsilon)), bound))
        return min(min(r, delta or r) * a, clipped * a)

    return _with_advantages(objective, ratio, advantages)


def leaky_clip(leak, ratio, advantages, epsilon=0.2, epsilon_high=None, delta=None):
    def objective(r, a):
        low, high = 1 - epsilon, 1 + (epsilon if epsilon_high is None else epsilon_high)
        clipped, bounded = min(max(r, low), high), min(r, delta or r)
        return min(bounded * a, clipped * a + leak * (bounded - clipped) * a)

    return _with_advantages(objective, ratio, advantages)


def _with_advantages(function, ratio, advantages):
    def of_token(b, t):
        row = advantages[b]
        return row[min(t, len(row) - 1)] if isinstance(row, list) else row

    return [[function(r, of_token(b, t)) for t, r in enumerate(row)] for b, row in enumerate(ratio)]


def mean_by_power_of_length(power, values, mask, loss_type, max_completion_length=None, num_items=None):
    rows = _rows(values, mask)
    return (
        sum(sum(row) / max(len(row), 1) ** power for row in rows) / len(rows) if loss_type in ("grpo", "sapo") else None
    )


def mean_by_longest(_, values, mask, loss_type, max_completion_length=None, num_items=None):
    rows = _rows(values, mask)
    return sum(map(sum, rows)) / (len(rows) * max(1, *map(len, rows))) if loss_type == "bnpo" else None


def _rows(values, mask):
    wide = [row * len(counts) if len(row) == 1 else row for row, counts in zip(values, mask, strict=True)]
    return [[v for v, c in zip(*rows, strict=True) if c] for rows in zip(wide, mask, strict=True)]


def chance_of_several_right(least, n, c, k):
    draws = itertools.combinations([True] * c + [False] * (n - c), k)
    counts = [sum(chosen) >= least for chosen in draws]
    return sum(counts) / len(counts)


def all_right(_, n, c, k):
    return chance_of_several_right(k, n, c, k)


LOOPS = {
    "token_entropy": [tsallis_entropy],
    "group_advantages": [advantages_by_power_of_distances, advantages_from_mid_range],
    "rloo_advantages": [advantages_over_best_other, advantages_over_middle_of_others],
    "kl_estimate": [k3_of_order, k2_of_scale],
    "importance_ratio": [sequence_ratio],
    "clipped_surrogate": [clip_in_logarithms, leaky_clip],
    "aggregate": [mean_by_power_of_length, mean_by_longest],
    "pass_at_k": [chance_of_several_right, all_right],
}


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("name", "index", "entry"), ENTRIES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_formula_is_what_a_literal_loop_computes(name, index, entry):
    """This holds on ordinary inputs, for every number that may be drawn. The docstring has the formula, too."""
    for number, filled in drawn(entry):
        exercise, compared = variant_of(name, filled), 0
        equations = {equation.tag: equation.latex for equation in read_equations(exercise.function)}
        assert equations[entry.equation] == filled.formula
        for case in exercise.cases:
            args, kwargs = case.build(5)
            if case.tested_property != "values" or (name == "pass_at_k" and args[0] > 20):
                continue
            expected = LOOPS[name][index](number, *map(plain, args), **{key: plain(kwargs[key]) for key in kwargs})
            if expected is not None:
                got = torch.as_tensor(exercise.function(*args, **kwargs), dtype=torch.float64)
                torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-9)
                compared += 1
        assert compared >= 2


@pytest.mark.parametrize("name", LOOPS)
def test_no_two_variants_agree_on_the_inputs_that_students_see(name):
    """No formula agrees with another one or with the lesson's, so a right answer to one is wrong for all others."""
    lesson = exercises.find_exercise(name)
    entries = LISTS[name]
    every = [lesson, *(variant_of(name, filled) for entry in entries for _, filled in drawn(entry))]
    assert len(every) > len(entries)
    for first, second in itertools.combinations(every, 2):
        pairs = zip(expected_outcomes(first), expected_outcomes(second), strict=True)
        assert not all(equal_outcomes(a, b, lesson) for a, b in pairs)
    assert all(not outcome.error for exercise in every for outcome in expected_outcomes(exercise))


def test_the_source_of_the_package_contains_no_line_of_a_variant():
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(grpo_lab.__file__).parent.rglob("*.py"))
    known = {ast.unparse(ast.parse(text)) for text in _wrong_lines()}
    for name, _, entry in ENTRIES:
        if not entry.draw:
            assert entry.line not in source or ast.unparse(ast.parse(entry.line)) in known, name
    assert not VARIANTS.is_relative_to(Path(grpo_lab.__file__).parent)


def _wrong_lines():
    """Return the lines of the lesson's known mistakes in `pass_at_k`, of which one is the formula of a variant."""
    changes = exercises.find_exercise("pass_at_k").mistakes
    return [line for mistake in changes for line in mistake.lines.values()]


def released(number, key=KEY):
    return json.loads(notebook_text(ASSIGNMENTS[number], key))


def class_cell(number, key=KEY):
    (cell,) = [c for c in released(number, key)["cells"] if c["metadata"]["grpo_lab"].get("role") == "variant"]
    return "".join(cell["source"])


@pytest.mark.parametrize("number", ["01", "02", "04", "05", "07c"])
def test_a_released_notebook_shows_the_formula_of_the_class_and_not_its_line(number):
    text, variants = "\n".join("".join(cell["source"]) for cell in released(number)["cells"]), KEY.exercises(number)
    assert variants
    assert "The formula of your class" in text
    for exercise in variants.values():
        assert solution_body(exercise).strip() not in text
        assert stub_head(exercise).strip() in text
        for equation in read_equations(exercise.function):
            assert f"$$\n{equation.latex} \\tag{{{equation.tag}}}\n$$" in text
    assignment = ASSIGNMENTS[number]
    assert notebook_text(assignment, ClassKey(KEY.secret)) == notebook_text(assignment, KEY), "the secret alone decides"
    assert "class_variant" not in notebook_text(assignment)
    assert KEY.secret not in text


def written(exercise, source):
    names = dict(exercise.function.__globals__)
    exec(source, names)
    return names[exercise.name]


@pytest.mark.slow
@pytest.mark.parametrize("number", ["02", "05"])
def test_check_and_grading_give_the_same_verdict_on_a_variant(number, at_home, capsys):
    """They agree on the key, the lesson's function, a stub and small mistakes; both name the lesson's function."""
    exec(class_cell(number), {})
    assert "formulas of your class" in capsys.readouterr().out
    for name, teacher in KEY.exercises(number).items():
        right = stub_head(teacher) + solution_body(teacher)
        slips = [right.replace("sum(-1)", "sum(0)"), right.replace("clamp(min=1)", "clamp(min=2)"), right + "\n    # x"]
        stub = stub_head(teacher) + "    raise NotImplementedError\n"
        verdicts = []
        for source in (right, solution(exercises.lesson_exercise(name)), stub, *slips):
            function = written(teacher, source)
            home = check(function)
            run_of_answer = ExerciseRun({seed: run_student(function, teacher, seed) for seed in (0, 7)})
            points, graded = grade_answer(teacher, run_of_answer, 7)
            assert (home.status, home.message, home.details) == (graded.status, graded.message, graded.details), source
            assert points <= home.points
            verdicts.append(home)
        assert [verdict.status for verdict in verdicts[:3]] == ["right", "wrong", "not started"]
        assert verdicts[1].misconceptions == (LESSON_MISTAKE,)
        assert "Your class has another one" in verdicts[1].message
        assert verdicts[0].points == teacher.points
        assert verdicts[1].points == 0
        assert str(hint(name)) != ""
        assert exercises.find_exercise(name).hints == [*teacher.hints]
        with pytest.raises(InputError, match="seed is 3"):
            check(written(teacher, right), seed=3)


def lesson_estimate_with_wrong_k2(logp, ref_logp, estimator="k3"):
    if estimator == "k2":
        return (ref_logp.detach() - logp).square()  # without the factor 1/2
    return kl_estimate(logp, ref_logp, estimator)


def test_an_answer_that_its_only_known_mistake_explains_in_part_is_judged():
    variant = variant_of("kl_estimate", LISTS["kl_estimate"][0].with_number("ORDER", 2))
    assert len(variant.mistakes) == 1
    verdict = judge(variant, outcomes(variant, lesson_estimate_with_wrong_k2), 0)
    assert verdict.status == "wrong"
    assert verdict.misconceptions == (LESSON_MISTAKE,)


def test_a_changed_class_cell_is_refused(at_home):
    text = results_of(KEY.exercises("02"))
    for broken in (text[:-40], "x" + text, "", "AAAA"):
        with pytest.raises(InputError, match="copy this cell again"):
            class_variant(broken)
    assert exercises._class_exercises == {}


def key_answers(number, key=KEY):
    answers = {name: solution(exercise) for name, exercise in exercises.exercises_of_notebook(number).items()}
    return answers | {name: solution(exercise) for name, exercise in key.exercises(number).items()}


@pytest.fixture
def folder(tmp_path):
    """A class: ada has the key's functions, bob the lesson's, and eve the key's in a notebook without variants."""
    lesson = {name: solution(exercise) for name, exercise in exercises.exercises_of_notebook("02").items()}
    imports = (
        "import torch\nfrom grpo_lab.advantages.formulas import *\n"
        "from grpo_lab.advantages.formulas import check_shapes\n",
    )
    for student, answers, key in (
        ("ada", key_answers("02"), KEY),
        ("bob", lesson, KEY),
        ("eve", key_answers("02"), None),
    ):
        submit(tmp_path / "class" / student / file_name("02"), "02", imports, key=key, **answers)
    return tmp_path / "class"


def test_a_class_is_graded_by_its_own_formulas(folder, sandbox, capsys):
    assert run(folder, key=KEY, seed=7) == 0
    rows = list(csv.DictReader((folder.parent / "out" / "grades.csv").open(encoding="utf-8-sig")))
    assert [(row["student"], row["points"]) for row in rows] == [("ada", "9"), ("bob", "0"), ("eve", "9")]
    assert "other formulas than those of the class" in rows[2]["remarks"]
    assert not rows[0]["remarks"]
    page = (folder.parent / "out" / "class.html").read_text(encoding="utf-8")
    assert LESSON_MISTAKE in page
    assert "Answers as they stand in the library" not in page
    assert KEY.secret not in (folder.parent / "out" / "grades.json").read_text(encoding="utf-8")
    assert main(["totals", str(folder.parent / "out"), "--output", str(folder.parent / "totals.csv")]) == 0
    with pytest.raises(InputError, match="variant differs from that of the earlier grading"):
        run(folder / "eve", output=folder.parent / "out", seed=7)


@pytest.mark.parametrize(
    ("key", "why"), [(None, "variant is missing; give"), (ClassKey("x"), "variant is another secret")]
)
def test_wrong_class_key_is_refused_before_anything_runs(folder, sandbox, key, why):
    with pytest.raises(InputError, match=why):
        run(folder, key=key)
    assert not (folder.parent / "out").exists()


def test_a_key_for_a_class_without_variants_is_refused(tmp_path, sandbox):
    for student in "ab":
        submit(tmp_path / "class" / student / file_name("02"), "02")
    with pytest.raises(InputError, match="variant is given; most notebooks have no variants"):
        run(tmp_path / "class", key=KEY)


def test_any_text_is_a_secret_of_a_class(tmp_path, capsys):
    """A word that the command itself once used for a drawn secret is no exception."""
    assert main(["release", str(tmp_path / "new"), "--assignment", "07c", "--variant", "drawn"]) == 0
    assert "The secret of this class" not in capsys.readouterr().out
    text = (tmp_path / "new" / file_name("07c")).read_text(encoding="utf-8")
    assert text == notebook_text(ASSIGNMENTS["07c"], ClassKey("drawn"))


def test_course_key_and_release_commands_take_variants(tmp_path, capsys):
    assert main(["key", "--variant", "s3cret", "--assignment", "07c"]) == 0
    assert key_text(ClassKey("s3cret"), "07c") == capsys.readouterr().out.removesuffix("\n")
    assert main(["release", str(tmp_path / "new"), "--assignment", "07c", "--variant"]) == 0
    output = capsys.readouterr().out
    secret = output.split()[-1]
    assert f"keep it, and give it to grade with --variant {secret}" in output
    text = (tmp_path / "new" / file_name("07c")).read_text(encoding="utf-8")
    assert text == notebook_text(ASSIGNMENTS["07c"], ClassKey(secret))
    assert secret not in text
    for wrong, why in ((["key"], "--variant"), (["key", "--variant", " "], "expected the secret"),
                       (["grade", ".", "--variants", "x.yaml"], "is read with --variant SECRET only"),
                       (["key", "--variant", "x", "--variants", "none.yaml"], "in a checkout only")):  # fmt: skip
        assert main_code(wrong) == 2
        assert why in capsys.readouterr().err


def main_code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize(
    ("content", "why"),
    [("x: [", "cannot be read"), ("[]", "expected a list"), ("nothing: []", "variants is 'nothing'"),
     ("aggregate: {}", "a list of entries with"), ("aggregate: [{equation: '5.20'}]", "a list of entries with")],
)  # fmt: skip
def test_malformed_variants_file_is_refused(content, why, tmp_path):
    (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=why):
        ClassKey("x", tmp_path / "own.yaml").exercises("05")


def test_a_teachers_own_file_needs_a_formula_and_a_line(tmp_path):
    entry = {"equation": "4.16", "formula": "R'_b = R_b", "line": "penalised = rewards + 0 * beta", "says": "Nothing."}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"kl_in_reward": [entry]}), encoding="utf-8")
    key = ClassKey("x", tmp_path / "own.yaml")
    assert [*key.exercises("04")] == ["kl_in_reward"]
    assert key.fingerprint("05") == ""
    assert len(key.fingerprint("04")) == 8
    assert r"R'_b = R_b \\tag{4.16}" in notebook_text(ASSIGNMENTS["04"], key), "as JSON writes it"
    with pytest.raises(InputError, match=r"equation is '9\.9'; expected the tag of one line"):
        variant_of("kl_in_reward", ClassFormula(**entry | {"equation": "9.9"}))


def test_classes_draw_different_variants():
    drawn_formulas = {ClassKey(str(n)).fingerprint("05") for n in range(40)}
    assert len(drawn_formulas) > 20
    assert all(set(ASSIGNMENTS) >= {exercises.find_exercise(name).notebook} for name in LOOPS)


def test_the_pages_for_teachers_list_what_may_be_drawn(tmp_path):
    """Both pages list every function and the number of formulas, and their example of a file works."""
    pages = [VARIANTS.with_name(f"variants{ending}").read_text(encoding="utf-8") for ending in (".md", ".zh-CN.md")]
    total = sum(len(list(drawn(entry))) for _, _, entry in ENTRIES)
    examples = [re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1] for page in pages]
    for page, phrase in zip(pages, (f"that is {total} formulas", f"一共有 {total} 个公式"), strict=True):
        assert phrase in page
        assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(LISTS)
    assert examples[0] == examples[1]
    (tmp_path / "own.yaml").write_text(examples[0], encoding="utf-8")
    assert r"1 - \epsilon^" in key_text(ClassKey("x", tmp_path / "own.yaml"), "05")


@pytest.mark.skipif(os.name == "nt", reason="a script for Linux")
def test_gradescope_export_grades_by_the_formulas_of_the_class(tmp_path):
    assert main(["export-gradescope", str(tmp_path / "g"), "--variant", "it's", "--assignment", "05"]) == 0
    script = (tmp_path / "g" / "run_autograder").read_text(encoding="utf-8")
    assert """--variant 'it'"'"'s' --variants "$root/source/variants.yaml" --trust""" in script
    assert (tmp_path / "g" / "variants.yaml").read_bytes() == VARIANTS.read_bytes()


def test_a_notebook_in_chinese_says_the_formula_and_its_hints_in_chinese(at_home):
    """All texts, the sentence on the class's formula and the hints are Chinese; code is as in English."""
    pytest.importorskip("babel")
    for number in ("02", "05"):
        english, ours = (json.loads(notebook_text(ASSIGNMENTS[number], KEY, lang))["cells"] for lang in ("en", "zh_CN"))
        variants = KEY.exercises(number)
        for cell, english_cell in zip(ours, english, strict=True):
            role = cell["metadata"]["grpo_lab"].get("role")
            assert (cell["id"], cell["metadata"], cell["cell_type"]) == (
                english_cell["id"],
                english_cell["metadata"],
                english_cell["cell_type"],
            )
            text = "".join(cell["source"])
            if role == "variant":
                assert text.splitlines()[:2] == "".join(english_cell["source"]).splitlines()[:2], (
                    "its code, not its hints"
                )
                class_variant(text.split("'''")[1])
            elif cell["cell_type"] == "code":
                assert cell["source"] == english_cell["source"]
            else:
                assert re.search("[\u4e00-\u9fff]", text), f"{number}: {text[:60]}"
            if role == "task" and cell["metadata"]["grpo_lab"]["exercise"] in variants:
                equation = re.search(r"is not that of the lesson", "".join(english_cell["source"]))
                assert equation
                assert "**你们班的公式**：式 (" in text
                assert "formula of your class" not in text
        for name in variants:
            shown = [exercises.find_exercise(name).hints, variants[name].hints]
            assert all(re.search("[\u4e00-\u9fff]", text) for text in shown[0]), name
            assert len(shown[0]) == len(shown[1])
            assert shown[0] != shown[1]


def test_every_sentence_on_a_variant_is_translated_into_chinese():
    """The catalogue has every sentence on a formula. A sentence of a teacher's own formula stays as it is."""
    pytest.importorskip("babel")
    for entries in LISTS.values():
        for entry in entries:
            for text in (entry.says, *entry.hints):
                assert re.search("[\u4e00-\u9fff]", translate(text, "zh_CN")), text
    assert translate("A sentence of a teacher's own.", "zh_CN") == "A sentence of a teacher's own."


def test_release_command_writes_a_chinese_assignment(tmp_path):
    pytest.importorskip("babel")
    main(["release", str(tmp_path / "zh"), "--assignment", "02", "--lang", "zh_CN"])
    notebook = json.loads((tmp_path / "zh" / "02_baselines_and_advantages.ipynb").read_text(encoding="utf-8"))
    assert "".join(notebook["cells"][0]["source"]).startswith("# 作业 02")
    assert "交作业" in (tmp_path / "zh" / "README.md").read_text(encoding="utf-8")
    written = [cell for cell in notebook["cells"] if cell["metadata"]["grpo_lab"].get("role") == "written"]
    assert written_answer(written) == "", "the Chinese words that stand there are no answer"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "entry"), [(name, entry) for name, _, entry in ENTRIES], ids=range(len(ENTRIES)))
def test_the_lesson_s_function_earns_nothing_in_a_class_with_variants(name, entry):
    """This holds even if the formulas agree on some inputs, as a mean and a midrange do for two numbers."""
    for _, filled in drawn(entry):
        exercise = variant_of(name, filled)
        lesson = exercise.mistake(LESSON_MISTAKE).function
        verdicts = [check(lesson, exercise, seed=seed) for seed in (0, 3)]
        assert all(verdict.misconceptions == (LESSON_MISTAKE,) and verdict.points == 0 for verdict in verdicts)
