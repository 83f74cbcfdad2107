"""Translation of the labels of figures, from po/LANGUAGE/figures.po.

A label is looked up when the figure is drawn, with {0}, {1}, ... in place of its numbers. A label that is not in the
file, such as the name of a loss, is not translated.
"""

import re

from grpo_lab.base.catalogues import FIGURES, SLOT, display_catalogue

NUMBER = re.compile(r"(?<![\w.])[+−±-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![A-Za-z]*\d)")
WORD = re.compile(r"[A-Za-z]{2,}")
NO_WORDS = re.compile(r"\$[^$]*\$|<answer>.*|<think>.*")  # formulas, and completions of a model


def label_message(text: str) -> tuple[str, list[str]]:
    """Return a label with {0}, {1}, ... in place of its numbers, and the list of these numbers."""
    numbers: list[str] = []

    def placeholder(number: re.Match) -> str:
        numbers.append(number[0])
        return f"{{{len(numbers) - 1}}}"

    return NUMBER.sub(placeholder, text), numbers


def catalogue(target: str) -> dict[str, str]:
    """Return the translations into `target` by English label; empty if Babel or the file is missing."""
    return display_catalogue(FIGURES, target)


def looked_up(text: str, translations: dict[str, str]) -> str:
    """Return the translation of a text, with the text's numbers in it; an unknown text is returned unchanged."""
    if text in translations:
        return translations[text]
    message, numbers = label_message(text)
    if message not in translations:
        return text
    return SLOT.sub(lambda slot: numbers[int(slot[1])], translations[message])


def translated_label(text: str, target: str) -> str:
    """Return the label in the language `target`; a label that is not in the catalogue is returned unchanged."""
    return looked_up(text, catalogue(target))


def figure_labels(fig) -> list[str]:
    """Return the distinct texts of a drawn figure that contain a word."""
    from matplotlib.text import Text

    texts = [text.get_text() for text in fig.findobj(Text) if text.get_visible()]
    return list(dict.fromkeys(text for text in texts if WORD.search(NO_WORDS.sub("", text))))


def translate_labels(fig, target: str) -> None:
    """Translate all texts of a figure into the language `target`: titles, axes, ticks, legends and other texts."""
    from matplotlib.text import Text

    for axis in (axis for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = [label.get_text() for label in axis.get_majorticklabels()]
        translated_ticks = [translated_label(text, target) for text in ticks]
        if translated_ticks != ticks:  # set on the axis, which writes its tick labels again at each drawing
            axis.set_ticks(axis.get_majorticklocs(), translated_ticks)
    for text in fig.findobj(Text):
        text.set_text(translated_label(text.get_text(), target))
