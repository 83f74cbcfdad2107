"""A small GGUF file, for the tests that convert it and for those that fetch it from packages."""

import pytest

from grpo_lab.models.gguf_file import convert, read_header


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def converted(request, tmp_path_factory):
    """A small GGUF file of each architecture, and the folder that it becomes."""
    from tests.support.gguf_files import write_gguf  # needs gguf, which most tests of models do without

    folder = tmp_path_factory.mktemp(request.param)
    write_gguf(folder / "small.gguf", request.param)
    convert(read_header(folder / "small.gguf"), folder / "model", "a card\n")
    return folder / "small.gguf", folder / "model"
