"""The life of a run: what is restored and saved at its end, and when a signal stops it."""

import signal

import pytest

from grpo_lab.base import Stopped
from grpo_lab.trainer.run.session import open_session
from tests.support.small_policy import make_config, make_policy


def make_session(calls, **settings):
    model, tokenizer = make_policy()
    session = open_session(
        model, tokenizer, make_config(max_steps=2, **settings), None, lambda folder: calls.append("open"),
        saved_options={}, in_training_mode=True, get_trained_model=lambda: calls.append("get_trained_model"),
    )  # fmt: skip
    return model, session


def test_without_a_folder_nothing_is_opened_and_every_process_still_gathers_its_model():
    calls = []
    model, run = make_session(calls)
    was_training = model.training
    with run as session:
        assert session.log.history == [] and session.log.folder is None
        assert model.training and not calls
    assert calls == ["get_trained_model"] and model.training == was_training


def test_a_run_that_fails_saves_no_model_and_restores_the_mode():
    calls = []
    model, run = make_session(calls)
    was_training = model.training
    with pytest.raises(RuntimeError, match="broken"), run:
        raise RuntimeError("broken")
    assert not calls and model.training == was_training


def test_a_signal_stops_between_steps_after_saving_and_at_the_end_after_the_model():
    calls = []
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="^Stopped after step 1 of 2 by SIGTERM"), make_session(calls)[1] as session:
        session.log.add({})
        session.stop_if_signal_received(lambda: calls.append("save"))
        signal.raise_signal(signal.SIGTERM)
        session.stop_if_signal_received(lambda: calls.append("save"))
    assert calls == ["save"]
    with pytest.raises(Stopped, match="^Stopped after its last step by SIGTERM"), make_session(calls)[1] as session:
        session.log.add({})
        session.log.add({})
        signal.raise_signal(signal.SIGTERM)
        session.stop_if_signal_received(lambda: calls.append("save"))
    assert calls == ["save", "get_trained_model"] and signal.getsignal(signal.SIGTERM) == handler
