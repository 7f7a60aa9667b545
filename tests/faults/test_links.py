"""Links that break, bytes that change: the long forms are `make campaign-links` and `make campaign-altered`."""

from __future__ import annotations

import pytest
from bench.harness.links import why_not
from faults import altered_bytes, elastic_links


@pytest.fixture(autouse=True)
def namespaces():
    if missing := why_not():
        pytest.skip(missing)


@pytest.mark.parametrize("kind", ["flap", "down long"])
def test_short_faults_of_links_are_healed_and_long_ones_named(kind):
    elastic_links.run(elastic_links.fault_of(3, kind))


def test_each_altered_frame_is_found_and_repaired():
    altered_bytes.count(frames=500, rate=0.2, header_share=0.03, seed=1)
