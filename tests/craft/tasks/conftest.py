import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder with real GLUE and commonsense data, where there is one."""
    root = Path(os.environ.get("CRAFT_TEST_DATA") or Path(__file__).parents[3].parent / "shared" / "data")
    if not (root / "glue").is_dir():
        pytest.skip("no real data: name a folder with glue/ and commonsense/ in CRAFT_TEST_DATA")
    return root
