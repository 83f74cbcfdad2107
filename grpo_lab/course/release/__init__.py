"""Write the students' folder of assignment notebooks, with stubs and questions in words, or an autograder."""

from grpo_lab.course.release.notebooks import ASSIGNMENTS, TITLES, build, exercises_of_notebook, number_of, release
