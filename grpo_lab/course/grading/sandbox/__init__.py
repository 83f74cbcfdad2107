"""Where a stranger's notebook is run: a process of its own, behind walls, without the answers.

parent (`run`)  ->  `jail`, the outer wall  ->  `worker`, which puts up the inner one (`walls`) and then runs the cells.
What comes back are outcomes, as data. The parent neither runs nor unpickles anything of a student's, and what is right
is computed in the parent only.
"""
