"""Messages of one sentence that say where an error was raised."""

import importlib
import json
from pathlib import Path

import pytest

from attnlab.errors import counted, missing_package, with_location


def error_of(file: Path, text: str) -> Exception:
    file.write_text(text)
    with pytest.raises(Exception) as caught:
        exec(compile(text, str(file), "exec"), {"json": json, "importlib": importlib})
    return caught.value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n1 / 0", "ZeroDivisionError in own.py, line 2: division by zero"),
        ("json.loads('[')", "JSONDecodeError in own.py, line 1: Expecting value"),
        (
            "importlib.import_module('no_such_module')",
            "ModuleNotFoundError in own.py, line 1: No module named 'no_such_module'",
        ),
    ],
)
def test_the_line_is_that_of_the_users_file(text: str, sentence: str, tmp_path: Path) -> None:
    assert with_location(error_of(tmp_path / "own.py", text)).startswith(sentence)


def test_a_missing_package_has_the_name_that_pip_knows() -> None:
    hydra = ModuleNotFoundError("No module named 'hydra.core'", name="hydra.core")
    assert missing_package(hydra).endswith("install it with: pip install hydra-core")
    assert missing_package(ModuleNotFoundError("ours", name="attnlab.no_such_module")) == ""


def test_one_of_a_kind_has_no_plural():
    assert [counted(n, "run") for n in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]
    assert [counted(n, "process", "es") for n in (1, 2)] == ["1 process", "2 processes"]
