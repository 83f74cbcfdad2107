"""Toys: tasks and models small enough to train in seconds or to enumerate, and the arithmetic of many machines.

`sorting` is the task of notebook 03. `worlds` has the enumerated language of notebooks 01 and 02, and the measures of
losses of 05 and 05b. `guess` is the game of notebook 11, and `asynchronous` the arithmetic of notebook 10.
"""
