"""The plan for several cards, held against what processes of torchrun really allocate."""

from pathlib import Path

import pytest
import torch

from grpo_lab.memory.__main__ import main
from grpo_lab.memory.cards import plan_cards, share
from grpo_lab.models.shapes import random_policy, shape_config, shape_of
from tests.support.torchrun import torchrun
from tests.support.worlds import make_config

SMALL = shape_config("small")
STATE = ("weights", "gradients", "Adam's moments")


def plan(cards: int, shape=SMALL, rows: int = 4, **more) -> dict[str, int]:
    config = make_config(num_generations=4, generation_batch_size=rows, max_completion_length=16)
    return plan_cards(shape, config, cards=cards, prompt_length=8, **more)


@pytest.mark.slow
@pytest.mark.parametrize("cards", [2, 3])
def test_two_and_three_processes_hold_and_gather_what_is_planned(cards, tmp_path):
    done = torchrun(Path(__file__).with_name("on_cards.py"), tmp_path, processes=cards)
    assert done.returncode == 0, done.stderr[-3000:]
    held = [torch.load(path) for path in sorted(tmp_path.glob("*.pt"))]
    planned = plan(cards, precision="fp32")
    assert len(held) == cards
    for part in STATE:
        assert max(each[part] for each in held) == planned[part], part
    layer = sum(p.numel() for p in random_policy("small").base_model.layers[0].parameters())
    # The second layer that is planned for is on its way, and no parameter yet.
    assert max(each["gathered"] for each in held) * 4 == planned["gathered: two layers, embedding, head"] - 4 * layer


def test_rows_are_dealt_out_as_torch_chunks_them():
    for rows in (1, 2, 5, 7, 8):
        for cards in (1, 2, 3, 8):
            parameter = torch.zeros(rows, 3)
            assert share(parameter, cards) == max(part.numel() for part in parameter.chunk(cards))


def test_on_one_card_nothing_is_gathered_and_a_number_takes_16_bytes():
    planned, n = plan(1), shape_of(SMALL).parameters
    assert sum(planned[part] for part in STATE) == 16 * n
    assert set(planned) == {*STATE, "activations", "logits"}


def test_state_falls_with_the_cards_and_rows_until_each_has_one():
    one, four, eight = (plan(cards, rows=8) for cards in (1, 4, 8))
    assert four["weights"] == one["weights"] / 4 and eight["weights"] == one["weights"] / 8
    assert one["logits"] > four["logits"] > eight["logits"] == plan(16, rows=8)["logits"]


def test_what_is_gathered_is_half_as_wide_under_bf16():
    wide, narrow = plan(2, precision="fp32"), plan(2)
    part = "gathered: two layers, embedding, head"
    assert wide[part] == 2 * narrow[part] and wide["weights"] == narrow["weights"]


def test_the_known_7b_model_has_its_own_number_of_parameters():
    assert shape_of(shape_config("qwen2.5-7b")).parameters == 7_615_616_512


def test_the_command_lays_counts_of_cards_beside_each_other(capsys):
    assert not main(["--model", "small", "--cards", "6"])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("GiB on each card"))
    assert header.split()[4:] == ["1", "2", "4", "6"] and lines[-1].startswith("together")


def test_what_the_engine_does_not_have_is_refused(capsys):
    assert main(["--cards", "0"]) == 2 and "--cards is 0; it must be at least 1" in capsys.readouterr().err
    assert main(["--cards", "2", "--precision", "bf16"]) == 2
    assert "--precision is 'bf16'; expected one of" in capsys.readouterr().err
