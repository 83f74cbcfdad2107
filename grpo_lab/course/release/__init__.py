"""The students' folder of assignment notebooks, with stubs and written questions; and an autograder for Gradescope."""

from grpo_lab.course.release.notebooks import ASSIGNMENTS, TITLES, build, number_of, of_notebook, release
