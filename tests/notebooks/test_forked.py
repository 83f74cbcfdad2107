"""A notebook in a fork fails where it would under nbmake, and says in which cell."""

import sys

import nbformat
import pytest

from tests.notebooks.forked import NotebookFailed, NotebookFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nbmake runs the notebooks")


def run(request, path, *sources: str) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    (notebook,) = NotebookFile.from_parent(request.session, path=path).collect()
    notebook.runtest()


def test_a_notebook_fails_with_its_cell_and_its_traceback(request, tmp_path):
    from_here = f"import os, tempfile\nassert os.getcwd() == {str(tmp_path)!r}\nopen(tempfile.mkstemp()[1])"
    run(request, tmp_path / "right.ipynb", from_here, "x = 1", "import __main__\nassert __main__.x == 1")
    for wrong, said in [
        ("assert x == 2, 'another number'", "AssertionError: another number"),
        ("def", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(3)", "exit code 3"),
    ]:
        with pytest.raises(NotebookFailed) as failed:
            run(request, tmp_path / "wrong.ipynb", "x = 1", wrong, "print('never')")
        shown = str(failed.value)
        assert "wrong.ipynb, cell 1" in shown and said in shown and "never" not in shown, shown
