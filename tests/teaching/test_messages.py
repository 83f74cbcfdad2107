"""Messages with placeholders: what counts as a number, and how a translation gets its numbers."""

from grpo_lab.teaching.messages import message_and_numbers, translate_message


def test_numbers_of_a_text_become_placeholders_but_digits_of_names_stay():
    assert message_and_numbers("k3, 95%, R1, v0→1, 2e-4") == ("k3, {0}, R1, v0→{1}, {2}", ["95%", "1", "2e-4"])


def test_translation_takes_the_numbers_of_the_text_in_its_own_order():
    translations = {"{0} of {1}": "{1} 个中 {0} 个", "seed 0": "种子零"}
    assert translate_message("15 of 24", translations) == "24 个中 15 个"
    assert translate_message("seed 0", translations) == "种子零"
    assert translate_message("seed 1", translations) == "seed 1"
