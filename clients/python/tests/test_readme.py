"""The README shows the example that the tests run."""

from pathlib import Path

HERE = Path(__file__).parent.parent


def test_the_readme_has_the_example_that_is_run() -> None:
    example = (HERE / "examples" / "fork_tree.py").read_text()
    assert f"```python\n{example}```\n" in (HERE / "README.md").read_text()
