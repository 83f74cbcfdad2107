"""Pictures where three paragraphs would stand: each takes plain numbers and gives a figure."""
