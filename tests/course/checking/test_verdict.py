"""A verdict as HTML says the status in words, and escapes what students write."""

from grpo_lab.course import check
from grpo_lab.course.checking.verdict import html_of
from tests.course.small_exercise import MEAN


def test_html_says_the_status_in_words_and_escapes_what_students_write():
    def mine(values, mask, scale=1.0):
        print("<script>alert(1)</script>")
        raise TypeError("<b>bold</b>")

    page = check(mine, MEAN)._repr_html_()
    assert "not right yet" in page
    assert "<script>" not in page
    assert "<b>bold" not in page
    assert "&lt;script&gt;" in page
    assert "color:inherit" in page
    assert "✗" in page
    assert html_of("a step *before* it, 2 * 3, `x*y*z`") == "a step <em>before</em> it, 2 * 3, <code>x*y*z</code>"
    assert html_of("它就*成了*标准差") == "它就<em>成了</em>标准差"
