"""A whole run of `train`: its seeds, and the types of its data."""

import pytest
import torch

from tests.support.small_policy import (
    ROWS,
    same_weights,
    train_small,
    without_times,
)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    torch.manual_seed(1)
    weights_a, history_a = train_small(seed=5)
    torch.manual_seed(2)
    weights_b, history_b = train_small(seed=5)
    weights_c, history_c = train_small(seed=6)
    assert same_weights(weights_a, weights_b) and without_times(history_a) == without_times(history_b)
    assert not same_weights(weights_a, weights_c) and without_times(history_a) != without_times(history_c)


@pytest.mark.parametrize("prompts", ["strings", "messages"])
def test_a_datasets_dataset_gives_the_same_run_as_a_list(prompts):
    datasets = pytest.importorskip("datasets")
    rows = [row for row in ROWS if isinstance(row["prompt"], str) == (prompts == "strings")]
    from_list, history = train_small(rows=rows)
    from_dataset, history_dataset = train_small(rows=datasets.Dataset.from_list(rows))
    assert same_weights(from_list, from_dataset) and without_times(history) == without_times(history_dataset)
