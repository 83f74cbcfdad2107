"""The teaching kit names existing exercises and settings, and its links, dates and sums are right."""

import re
from datetime import date, timedelta
from pathlib import Path

import pytest

from grpo_lab.config import GRPOConfig
from grpo_lab.course.exercises import ASSIGNMENTS, all_exercises
from grpo_lab.course.exercises.nb09 import FAULTS
from grpo_lab.objective.losses import LOSSES

KIT = Path(__file__).parents[2] / "docs" / "teaching"
PAGES = sorted(KIT.rglob("*.md"))
COMMANDS = {"check", "release", "grade", "key", "totals", "draw", "hints", "title"}
YEAR, MONTHS = 2027, {"March": 3, "April": 4, "May": 5}


def text_of(name: str) -> str:
    return (KIT / name).read_text(encoding="utf-8")


def days(text: str) -> list[date]:
    return [date(YEAR, MONTHS[month], int(day)) for day, month in re.findall(r"\b(\d+) (March|April|May)\b", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_in_the_prose_of_the_teaching_kit_exist(page):
    names = {*all_exercises(), *LOSSES, *GRPOConfig.__dataclass_fields__, *COMMANDS}
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert set(re.findall(r"`(\w+)`", prose)) <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_in_the_teaching_kit_lead_to_files(page):
    for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("weeks", [6, 10])
def test_a_syllabus_has_a_session_each_week_and_known_assignments(weeks):
    text = text_of("syllabus.md")
    (section,) = re.findall(rf"## {['Six', 'Ten'][weeks == 10]} weeks\n(.*?)(?=\n## )", text, re.DOTALL)
    rows = [line for line in section.splitlines() if re.match(r"\| \d", line)]
    sessions = [days(row.split("|")[1])[0] for row in rows]
    assert sessions == [sessions[0] + timedelta(weeks=week) for week in range(weeks)] and sessions[0] in days(text)[:1]
    assert all(day.strftime("%A") == "Tuesday" for day in sessions)
    for row in rows:
        for number in re.findall(r"\b\d\dc?\b", re.sub(r"\d+ (March|April|May)", "", row)):
            assert number in {"00", *ASSIGNMENTS}
    marks = re.search(r"Marks: (.*)", section)
    assert marks and sum(map(int, re.findall(r"(\d+)%", marks[1]))) == 100


@pytest.mark.parametrize("name", ["syllabus", "project", "oral", "README", "variants"])
def test_a_page_in_chinese_has_the_dates_names_and_formulas_of_the_english_one(name):
    english, chinese = text_of(f"{name}.md"), text_of(f"{name}.zh-CN.md").replace("你的密语", "a secret of yours")
    dates = re.findall(r"(\d+) 月 (\d+) 日", chinese)
    assert [date(YEAR, int(month), int(day)) for month, day in dates] == days(english)
    for marked in (r"`[^`\n]+`", r"\$[^$\n]+\$", r"\d+%"):
        assert set(re.findall(marked, chinese)) == set(re.findall(marked, english)), marked
    headings = [re.findall(r"^#+ |^\d+\. ", text, re.MULTILINE) for text in (english, chinese)]
    assert headings[0] == headings[1]


def test_the_report_is_due_on_a_monday_after_the_last_session():
    assert date(YEAR, 5, 10).strftime("%A") == "Monday" and date(YEAR, 5, 10) in days(text_of("syllabus.md"))


def test_points_of_the_project_s_rubric_add_up_and_agree_across_pages():
    (table,) = re.findall(r"\| \| 0 to (\d+) points each \|\n\| --- \| --- \|\n((?:\|.*\n)+)", text_of("project.md"))
    points = int(table[0]) * len(table[1].splitlines())
    assert f"a rubric of {points} points" in text_of("README.md")


def test_the_oral_exam_states_the_number_of_logs():
    names = ["eight", "nine", "ten", "eleven", "twelve"]
    assert f"{names[len(FAULTS) - 8]} kinds of logs" in text_of("oral.md")


def test_every_lecture_ends_with_existing_assignments():
    for page in KIT.glob("slides/*.md"):
        numbers = re.findall(r"(?:Assignments?|作业) (\d\dc?)", page.read_text(encoding="utf-8"))
        assert set(numbers) <= set(ASSIGNMENTS)
