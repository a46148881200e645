"""When trial after trial fails for one reason, the session ends; when anything trains, it does not."""

from __future__ import annotations

from orchestrator.driver.queue import ENOUGH, CommonCause


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def after(reasons: list[str | None], running_since: tuple[float, ...] = ()) -> str | None:
    """The trouble after these failures; None stands for a trial that trains."""
    cause = CommonCause(Clock())
    for reason in reasons:
        if reason is None:
            cause.works()
        else:
            cause.failed(reason, running_since)
    return cause.trouble


def test_ten_alike_are_enough_and_the_reason_is_told() -> None:
    alike = [f"model m: no room on /scratch/{number}" for number in range(ENOUGH)]
    assert after(alike[:-1]) is None
    assert f"model m: no room on /scratch/{ENOUGH - 1}" in (after(alike) or "")


def test_another_reason_or_a_trial_that_trains_begins_the_count_anew() -> None:
    assert after(["no model"] * (ENOUGH - 1) + ["no data"] + ["no model"] * (ENOUGH - 1)) is None
    assert after(["no model"] * (ENOUGH - 1) + [None] + ["no model"] * (ENOUGH - 1)) is None


def test_a_trial_that_has_run_since_before_them_may_be_on_a_machine_that_is_well() -> None:
    assert after(["no model"] * 50, running_since=(0.5,)) is None
    assert after(["no model"] * 50, running_since=(30.0,)) is not None
