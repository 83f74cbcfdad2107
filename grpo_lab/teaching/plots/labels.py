"""Translation of the labels of figures, from po/LANGUAGE/figures.po.

A label is looked up when the figure is drawn, with {0}, {1}, ... in place of its numbers. A label that is not in the
file, such as the name of a loss, is not translated.
"""

import re

from grpo_lab.base.language import FIGURES, display_catalogue
from grpo_lab.teaching.messages import WORD, translate_message

NO_WORDS = re.compile(r"\$[^$]*\$|<answer>.*|<think>.*")  # formulas, and completions of a model


def label_translations(target_language: str) -> dict[str, str]:
    """Return {message of an English label: its translation}; empty if Babel or the file is missing."""
    return display_catalogue(FIGURES, target_language)


def translate_label(text: str, target_language: str) -> str:
    """Return a label in another language; a label that is not in the catalogue is returned unchanged."""
    return translate_message(text, label_translations(target_language))


def figure_labels(fig) -> list[str]:
    """Return the distinct texts of a drawn figure that contain a word."""
    from matplotlib.text import Text

    texts = [text.get_text() for text in fig.findobj(Text) if text.get_visible()]
    return list(dict.fromkeys(text for text in texts if WORD.search(NO_WORDS.sub("", text))))


def translate_labels(fig, target_language: str) -> None:
    """Translate all texts of a figure in place: titles, axes, ticks, legends and other texts."""
    from matplotlib.text import Text

    for axis in (axis for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = [label.get_text() for label in axis.get_majorticklabels()]
        translated_ticks = [translate_label(text, target_language) for text in ticks]
        if translated_ticks != ticks:  # set on the axis, which writes its tick labels again at each drawing
            axis.set_ticks(axis.get_majorticklocs(), translated_ticks)
    for text in fig.findobj(Text):
        text.set_text(translate_label(text.get_text(), target_language))
