"""CITATION.cff names the version that is installed."""

import yaml

import attnlab
from tests.conftest import ROOT


def test_the_citation_has_the_fields_that_the_format_requires_and_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == attnlab.__version__
