"""A line is addressed by its equation, its call or its marker, whatever its variables are called."""

import pytest

from grpo_lab.formulas.lines import span_at, with_lines, without_markers

SOURCE = """def loss(logp, mask):
    total = mask.sum()  # (9.8) is no anchor here
    if total == 0:  # [empty]
        return logp.sum() * 0
    mean = -(
        logp * mask
    ).sum() / total  # scalar (9.9)
    return clip(
        mean,
        limit=1.0,  # [limit]
    )
"""
ADDRESSES = {"9.9": (5, 7), "clip()": (8, 11), "[empty]": (3, 3), "[limit]": (10, 10)}


@pytest.mark.parametrize("address", ADDRESSES)
def test_renaming_a_local_variable_moves_no_address(address):
    for source in (SOURCE, SOURCE.replace("total", "count").replace("mean", "average")):
        assert span_at(source, address) == ADDRESSES[address]


def test_the_new_line_is_indented_and_keeps_the_comment():
    new = with_lines(SOURCE, {"9.9": "mean = logp.mean()", "[empty]": "if False:", "clip()": "return mean"})
    rows = SOURCE.splitlines()
    assert new.splitlines() == [*rows[:2], "    if False:  # [empty]", rows[3],
                                "    mean = logp.mean()  # scalar (9.9)", "    return mean"]  # fmt: skip
    assert "[empty]" not in without_markers(new) and "(9.9)" in without_markers(new)
    assert "limit" not in with_lines(SOURCE, {"[limit]": ""})


@pytest.mark.parametrize("address, count", [("9.8", 0), ("sum()", 3), ("[gone]", 0), ("loss()", 0)])
def test_an_address_of_no_line_or_of_several_is_refused(address, count):
    with pytest.raises(ValueError, match=f"is the address of {count} lines of loss; expected one"):
        with_lines("x = 0\n\n\n" + SOURCE, {address: "pass"}, "loss")
