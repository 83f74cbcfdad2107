"""What students get: assignment notebooks with their stubs, written questions, and the export to nbgrader."""

from grpo_lab.course.release.nbgrader import export_nbgrader
from grpo_lab.course.release.notebooks import ASSIGNMENTS, TITLES, build, of_notebook, release
