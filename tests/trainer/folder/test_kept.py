"""Which checkpoints stay: the newest, the one before it, and the best."""

import pytest
from transformers import AutoModelForCausalLM

from grpo_lab.trainer import Run
from grpo_lab.trainer.folder.journal import Journal
from grpo_lab.trainer.folder.manifest import Manifest, read
from tests.support.resuming import cheap_run, cheap_run_until
from tests.support.worlds import ROWS, make_config, make_world, same_weights, weights

EVERY_STEP = {"save_steps": 1, "max_steps": 6}


def kept(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


ALL = list(range(1, 13))


@pytest.mark.parametrize(
    ("limit", "best", "want"),
    [
        (None, None, ALL),
        (1, None, [12]),
        (2, None, [11, 12]),
        (3, None, [10, 11, 12]),
        (99, None, ALL),
        (None, 2, ALL),
        (1, 2, [2, 12]),
        (2, 2, [2, 12]),
        (3, 2, [2, 11, 12]),
        (1, 12, [12]),
        (2, 12, [11, 12]),
        (2, 11, [11, 12]),
    ],
)
def test_the_newest_stay_and_the_best_which_counts_as_one(limit, best, want, tmp_path):
    """As in transformers: a limit of 5 keeps the best and the four newest; the newest stays whatever the limit."""
    journal = Journal(tmp_path)
    checkpoints = {f"checkpoint-{step}": {"step": step, "files": {}} for step in ALL}
    journal.manifest = Manifest({}, {}, checkpoints=checkpoints, best=best)
    journal.discard(journal.surplus(limit))
    assert [entry["step"] for entry in journal.manifest.checkpoints.values()] == want
    assert journal.manifest.best == best and read(tmp_path) == (journal.manifest if want != ALL else None)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_run_keeps_as_many(limit, tmp_path):
    assert kept(cheap_run(tmp_path, save_total_limit=limit, **EVERY_STEP)[0]) == [4, 5, 6][-limit:]


def opened(folder, resume=False, **settings):
    model, tokenizer = make_world(num_hidden_layers=1)
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(EVERY_STEP | settings))
    return Run(model, tokenizer, ROWS, config)


def record(run, step):
    for parameter in run.model.parameters():
        parameter.data += 1.0
    metrics = {"reward": 0.5, "num_tokens": 5, "completions/mean_length": 1.0}
    run.record(step, metrics, None)


def test_the_best_is_remembered_loaded_and_changed(tmp_path):
    after = {}
    with pytest.raises(InterruptedError), opened(tmp_path) as run:
        for step in run.steps():
            record(run, step)
            after[step + 1] = weights(run.model)
            if step + 1 in (1, 3):
                run.folder.mark_best(step + 1)
            if step + 1 == 4:
                raise InterruptedError
    assert kept(tmp_path) == [3, 4]
    with pytest.raises(InterruptedError), opened(tmp_path, resume=True) as run:
        assert run.first_step == 4 and run.folder.best == 3
        assert same_weights(weights(run.model), after[4])
        assert run.folder.load_best(run.model) == 3
        assert same_weights(weights(run.model), after[3])
        run.folder.mark_best(4)
        assert run.folder.best == 4
        raise InterruptedError
    assert same_weights(weights(AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")), after[3])


def test_a_step_without_a_checkpoint_cannot_be_the_best(tmp_path):
    with opened(tmp_path) as run:
        assert run.folder.load_best(run.model) is None
        with pytest.raises(ValueError, match=r"^step is 2; expected one that has a checkpoint .none yet."):
            run.folder.mark_best(2)
        for step in run.steps():
            record(run, step)
        with pytest.raises(ValueError, match=r"^step is 2; expected one .*checkpoint-6, checkpoint-5"):
            run.folder.mark_best(2)


def test_a_best_checkpoint_that_is_broken_is_said_to_be(tmp_path):
    with (
        pytest.raises(
            ValueError,
            match="checkpoint-2., the best checkpoint, is broken .*has 0 bytes.*or take checkpoint-6",
        ),
        opened(tmp_path) as run,
    ):
        for step in run.steps():
            record(run, step)
            if step + 1 == 2:
                run.folder.mark_best(2)
        (tmp_path / "checkpoint-2/model.safetensors").write_bytes(b"")
        run.folder.load_best(run.model)


def test_a_best_checkpoint_that_was_removed_as_broken_is_best_no_more(tmp_path):
    with pytest.raises(InterruptedError), opened(tmp_path) as run:
        for step in run.steps():
            record(run, step)
            if step + 1 == 3:
                run.folder.mark_best(3)
                raise InterruptedError
    (tmp_path / "checkpoint-3/model.safetensors").unlink()
    with pytest.raises(InterruptedError), opened(tmp_path, resume=True) as run:
        assert run.first_step == 2 and run.folder.best is None
        raise InterruptedError


def test_the_limit_may_change_and_counts_from_the_next_checkpoint_on(tmp_path):
    cheap_run_until(tmp_path, 4, save_total_limit=None, **EVERY_STEP)
    assert kept(tmp_path) == [1, 2, 3, 4]
    cheap_run_until(tmp_path, 5, save_total_limit=3, **EVERY_STEP)
    assert kept(tmp_path) == [3, 4, 5]
