"""What a policy could do before it was trained on something else: a few questions, and a few paragraphs to read.

No reward sees them. They are too few to measure ability; they are enough to notice that some of it has gone.
"""

import re

# Question, and what one of the answers that a child would give holds.
QUESTIONS = (
    ("What is the capital of France?", ("Paris",)),
    ("What is the capital of Italy?", ("Rome",)),
    ("Which planet do we live on?", ("Earth",)),
    ("What is the opposite of hot?", ("cold",)),
    ("How many days does a week have?", ("7", "seven")),
    ("What do bees make?", ("honey",)),
    ("Which animal barks?", ("dog",)),
    ("What is frozen water called?", ("ice",)),
    ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    ("What gas do plants take from the air?", ("carbon dioxide", "CO2")),
)
WRITING = "Write one sentence about the sea."
PARAGRAPHS = (
    "The ferry left the harbour before sunrise. On deck a few passengers drank coffee from paper cups and watched the "
    "lights of the town grow small. Somebody said that the weather would turn in the afternoon, but nobody seemed to "
    "mind. The sea was flat and grey, and gulls followed the ship for a mile or two before they went back.",
    "To bake a simple loaf you need flour, water, salt and yeast. Mix them, knead the dough until it is smooth, and "
    "leave it in a warm place until it has doubled in size. Then shape it, let it rest for another half hour, and bake "
    "it in a hot oven until the crust is brown and the loaf sounds hollow when you tap it.",
    "A hash table stores each value under a key. To find a value again, the program computes a number from the key and "
    "looks in the place that this number names. When two keys lead to the same place, both are kept there in a short "
    "list. As long as the table is not too full, finding a value takes about the same time however many there are.",
    "Glaciers move, though too slowly for the eye. Snow that falls on the upper part is pressed into ice by the snow "
    "that follows, and the ice flows downhill under its own weight. On the way it picks up stones and grinds the rock "
    "beneath. Where the ice melts as fast as it arrives, the glacier ends, and leaves the stones in a ridge.",
    "My grandmother kept her letters in a tin box under the stairs. Most of them came from her sister, who had moved "
    "to another country when they were both young. They wrote to each other every month for fifty years, about "
    "children, gardens and the price of butter. She said that she had never felt far away.",
    "A jury listens to both sides before it decides. The prosecutor has to show that the accused did what is claimed, "
    "and the defence may question every witness. What the jury may not do is read about the case in the newspapers, "
    "because what is written there was never tested. If reasonable doubt remains, the verdict must be not guilty.",
)


def remembers(question: int, reply: str) -> bool:
    """Whether a reply to one of the `QUESTIONS` holds what is looked for as a word, in whichever case."""
    return any(re.search(rf"\b{re.escape(word)}(?!\d)", reply, re.IGNORECASE) for word in QUESTIONS[question][1])
