"""The contract test of searchers, for the tests of this project and of plugins."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml


def check_searcher(name: str) -> None:
    """Checks a searcher on a toy sweep: it wants each trial once, the same ones again for the same seed, and ends.

    Raises:
        AssertionError: what does not hold.
        SweepError: the sweep file does not fit the searcher's row.
    """
    from orchestrator.plan.plan import make_plan
    from orchestrator.record.state import State
    from orchestrator.search.stages import make_strategy
    from orchestrator.sweepfile.load import load_sweep
    from orchestrator.sweepfile.settings import SEARCHERS

    drawn = {"configurations": 3} if SEARCHERS[name].samples else {}
    document = {
        "name": "contract",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "tasks": ["toy/sentiment"],
        "space": [{"method": "lora", "rank": {"values": [4, 1, 2]}}],
        "search": {"algorithm": name, **drawn},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "contract.yaml"
        file.write_text(yaml.safe_dump(document | {"storage": folder}), encoding="utf-8")
        keys = []
        for _ in range(2):
            strategy, state = make_strategy(make_plan(load_sweep(file))), State()
            for _ in range(10):  # an adaptive searcher draws until it has enough
                events = strategy.draw(state)
                if not events:
                    break
                for event in events:
                    state = state.after(event)
            keys.append([trial.key for trial in strategy.wanted(state)])
            assert not strategy.draw(state), f"{name} draws without end"
    assert keys[0], f"{name} wants no trial"
    assert len(set(keys[0])) == len(keys[0]) <= 3, f"{name} wants a trial twice, or too many: {keys[0]}"
    assert keys[0] == keys[1], f"{name} wants others for the same seed"
