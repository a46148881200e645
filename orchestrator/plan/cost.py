"""The cost of configurations before they train: parameters, bytes and memory, and the constraints on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from craft.results import Counts
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.identity import Identity
from orchestrator.sweepfile.mistakes import SweepError, dotted
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.space.sizes import SIZES, size_labels, sizes_within

Counter = Callable[[RunSpec], Counts]

MemoryEstimate = Callable[[RunSpec], int]


class Cost:
    """Counts parameters and memory of configurations, on the model without weights.

    Args:
        counter: counts a run; `craft.trainer.counting.planned_counts` if not given, which remembers what it has counted.
        memory: estimates the memory of a run in bytes, with a `counter`.
    """

    def __init__(self, identity: Identity, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep, self._identity, self.checks_model = identity.sweep, identity, counter is None
        if counter is None:
            from craft.trainer.counting import estimated_memory, planned_counts

            counter, memory = planned_counts, estimated_memory
        self.counter, self.memory = counter, memory

    def count(
        self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath
    ) -> tuple[Counts, int | None]:
        """Returns the counts and the estimated memory of a configuration, on the tasks that need most.

        Raises:
            ValueError: the method cannot be built on the model.
        """
        chosen, seed = (method, parameters, training, path), self.sweep.seeds[0]
        specs = [self._identity.spec(*chosen, task, seed) for task in self.sweep.task_names]
        if self.checks_model:
            from craft.trainer.counting import check_room

            for spec in specs:
                check_room(spec)
        return self.counter(self._widest(*chosen)), max(map(self.memory, specs)) if self.memory else None

    def sizes_of(self, trained: Configuration) -> list[Configuration]:
        """Returns what its block cuts the adapters of a configuration to, ascending.

        How many parameters a cut leaves is known once the adapter is trained. Until then it counts as its most.
        """
        block, parameters = self.sweep.block_at(trained.path), trained.counts.trainable_parameters
        sizes = sizes_within(block.sizes if block else None, parameters)
        return [trained.cut(size, name) for size, name in zip(sizes, size_labels(sizes, parameters), strict=True)]

    def broken_constraint(self, configuration: Configuration) -> str | None:
        """Returns why the sweep's constraints exclude `configuration`, or None."""
        for name, bounds in self.sweep.constraints.items():
            value = configuration.known.get(name)
            if value is None:
                continue
            if bounds.max is not None and value > bounds.max:
                return f"{name} {value:,.0f} is above max {bounds.max:,.0f}"
            if bounds.min is not None and value < bounds.min:
                return f"{name} {value:,.0f} is below min {bounds.min:,.0f}"
        return None

    def check_sizes(self, trained: Configuration, sizes: Sequence[Configuration]) -> None:
        """Raises SweepError if the adapters of a configuration cannot be cut to these sizes."""
        if not sizes or not self.checks_model:
            return
        from craft.trainer.counting import check_sizes

        widest = self._widest(trained.method, trained.parameters, trained.training, trained.path)
        try:
            check_sizes(widest, [size.counts.trainable_parameters for size in sizes])
        except ValueError as error:
            where = f"{self.sweep.where(trained.path)}: {dotted((*trained.path, SIZES))}"
            raise SweepError([f"{where}: {trained.label}: {error}"]) from None

    def _widest(self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath) -> RunSpec:
        """Returns the run on the task with the widest head."""
        tasks = [find_task(name, self.sweep.data) for name in self.sweep.task_names]
        widest = max(tasks, key=lambda task: len(task.labels))
        return self._identity.spec(method, parameters, training, path, widest.name, self.sweep.seeds[0])
