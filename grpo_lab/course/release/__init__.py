"""What students get: assignment notebooks with their stubs and written questions; and an autograder for Gradescope."""

from grpo_lab.course.release.notebooks import ASSIGNMENTS, TITLES, build, of_notebook, release
