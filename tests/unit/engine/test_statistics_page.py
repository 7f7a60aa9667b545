"""The page of statistics() names what is in the document."""

from __future__ import annotations

import re
from pathlib import Path

from rabit.config.config import Config
from rabit.engine.engine import STATISTICS_SCHEMA, Engine

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "statistics.md"


def test_every_name_of_the_document_is_on_its_page():
    with Engine(Config()) as engine:
        document = engine.statistics()

    named = set(re.findall(r"`([a-z_]+)`", PAGE.read_text()))
    assert document["schema"] == STATISTICS_SCHEMA
    # Measured by the engine for itself.
    assert set(document) - named <= {"hand_back_us"}
