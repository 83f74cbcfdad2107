"""The students' folder of assignment notebooks, with stubs and written questions; and an autograder for Gradescope."""

from grpo_lab.course.release.notebooks import ASSIGNMENTS, TITLES, build, of_notebook, release
