"""The plugin for pytest: checkups in any project's tests, with the report beside the failure.

    def test_model(assert_causal):
        assert_causal(make_model(), vocab_size=65, block_size=64)

    @pytest.mark.attnlab(seconds=30)  # for each checkup of this test
    def test_more(attnlab_checkup):
        assert attnlab_checkup(make_model(), vocab_size=65).healthy

Nothing of attnlab is imported before a test asks for it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

_MADE = pytest.StashKey[list[Any]]()


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
    """`attnlab.checkup.checkup`; a failing test shows its reports."""
    from attnlab.checkup import runner

    def examine(
        model: Callable[..., object],
        *,
        vocab_size: int | None = None,
        block_size: int | None = None,
        ids: Any = None,
        example: Any = None,
        loss: Any = None,
        batch: Any = None,
        prove: bool = False,
        seconds: float | None = _seconds(request.node),
        seed: int = 0,
        name: str | None = None,
    ) -> Any:
        report = runner.checkup(
            model, vocab_size=vocab_size, block_size=block_size, ids=ids, example=example,
            loss=loss, batch=batch, prove=prove, seconds=seconds, seed=seed, name=name,
        )  # fmt: skip
        request.node.stash.setdefault(_MADE, []).append(report)
        return report

    return examine


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Attach the reports of a failed test."""
    outcome: Any = yield
    result = outcome.get_result()
    if result.failed and call.excinfo is not None:
        error: Any = call.excinfo.value
        own = [error.report] if type(error).__name__ == "CheckupFailed" else []
        for report in [*item.stash.get(_MADE, []), *own]:
            result.sections.append((f"checkup of {report.subject}", report.to_text()))
