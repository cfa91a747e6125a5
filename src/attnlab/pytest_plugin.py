"""The plugin for pytest: checkups in any project's tests, with the report beside the failure.

    def test_model(assert_causal):
        assert_causal(make_model(), vocab_size=65, block_size=64)

    @pytest.mark.attnlab(seconds=30)  # for each checkup of this test
    def test_more(attnlab_checkup):
        assert attnlab_checkup(make_model(), vocab_size=65).healthy

Nothing of attnlab is imported before a test asks for it.
"""

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "attnlab(seconds): the time for each checkup of a test")


def _seconds(item: pytest.Item) -> float | None:
    marker = item.get_closest_marker("attnlab")
    return marker and (marker.args[0] if marker.args else marker.kwargs["seconds"])


@pytest.fixture
def assert_causal(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`attnlab.checkup.assert_causal`, with the seconds of the test's marker."""
    from attnlab.checkup import assertions

    return partial(assertions.assert_causal, seconds=_seconds(request.node))


@pytest.fixture
def attnlab_checkup(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`attnlab.checkup.checkup`, with the seconds of the test's marker."""
    from attnlab.checkup import runner

    return partial(runner.checkup, seconds=_seconds(request.node))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Attach to a failed test the reports that its frames hold, in variables or in an assert.

    The message of `CheckupFailed` holds its own.
    """
    outcome: Any = yield
    result = outcome.get_result()
    if result.failed and call.excinfo and call.excinfo.typename != "CheckupFailed":
        frames = [frame for frame, _ in traceback.walk_tb(call.excinfo.tb)]
        held = [value for frame in frames for value in frame.f_locals.values()]
        reports = [x for x in held if type(x).__module__ == "attnlab.checkup.checkup_report"]
        for report in {id(x): x for x in reports if type(x).__name__ == "Report"}.values():
            result.sections.append((f"checkup of {report.subject}", report.summary()))
