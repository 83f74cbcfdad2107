"""The labels of figures in the reader's language, from po/LANGUAGE/figures.po.

A label is looked up as the figure is drawn, with {0}, {1}, ... in the places of its numbers. What is not in the file,
such as the name of a loss, stays as it is.
"""

import re

from grpo_lab.base.language import FIGURES, SLOT, display_catalogue

NUMBER = re.compile(r"(?<![\w.])[+−±-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![A-Za-z]*\d)")
WORD = re.compile(r"[A-Za-z]{2,}")
NO_WORDS = re.compile(r"\$[^$]*\$|<answer>.*|<think>.*")  # formulas, and completions of a model


def label_message(text: str) -> tuple[str, list[str]]:
    """The label with {0}, {1}, ... in the places of its numbers, and the numbers."""
    numbers: list[str] = []

    def slot(number: re.Match) -> str:
        numbers.append(number[0])
        return f"{{{len(numbers) - 1}}}"

    return NUMBER.sub(slot, text), numbers


def catalogue(target: str) -> dict[str, str]:
    """Labels by their English, in the language `target`; empty where Babel or the file is missing."""
    return display_catalogue(FIGURES, target)


def looked_up(text: str, known: dict[str, str]) -> str:
    """The text as `known` has it, with its own numbers; one that is not there stays as it is."""
    message, numbers = label_message(text)
    if text in known or message not in known:
        return known.get(text, text)
    return SLOT.sub(lambda slot: numbers[int(slot[1])], known[message])


def translated_label(text: str, target: str) -> str:
    """The label in the language `target`; one that is not in the catalogue stays as it is."""
    return looked_up(text, catalogue(target))


def figure_labels(fig) -> list[str]:
    """All texts with a word in them that a figure shows once it has been drawn, each once."""
    from matplotlib.text import Text

    texts = [text.get_text() for text in fig.findobj(Text) if text.get_visible()]
    return list(dict.fromkeys(text for text in texts if WORD.search(NO_WORDS.sub("", text))))


def translate_labels(fig, target: str) -> None:
    """Put all texts of the figure into the language `target`: titles, axes, ticks, legends and what stands in it."""
    from matplotlib.text import Text

    for axis in (axis for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = [label.get_text() for label in axis.get_majorticklabels()]
        ours = [translated_label(text, target) for text in ticks]
        if ours != ticks:  # an axis writes its ticks anew at each drawing, so it has to know the words
            axis.set_ticks(axis.get_majorticklocs(), ours)
    for text in fig.findobj(Text):
        text.set_text(translated_label(text.get_text(), target))
