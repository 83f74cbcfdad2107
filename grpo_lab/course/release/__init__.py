"""Write the students' folder of assignment notebooks, with stubs and questions in words, or an autograder."""

from grpo_lab.course.release.notebooks import build, release
