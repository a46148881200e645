"""`CraftConfig`: the configuration of a CRAFT adapter, in PEFT's form.

    Ŵ = W + s (T - R),   T = G x1 (U1 J1) x2 (U2 J2) x3 (U3 J3)       trainable: J1 (r1 x r1), J2 (r2 x r2), J3 (r3 x r3)

for each projection type, whose weights of all layers are one stack. `craft.tuners.craft.model` puts it on a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peft.config import PeftConfig
from peft.utils.peft_types import PeftType

from craft.models.projections import WORDS
from craft.ranks import AskedRanks, check_ranks

DEFAULT_PROJECTIONS = ("q", "v")


class FoundModules(set[str]):
    """Paths of the modules at which a model has the projections of a configuration.

    PEFT and other programs read them as `target_modules`. The type distinguishes them from modules that a user chose.
    """


@dataclass
class CraftConfig(PeftConfig):
    """Configuration of a CRAFT adapter (paper, Algorithm 1).

    Raises ValueError for a value outside its range, `projections` together with `target_modules`, or `layers_to_transform`.

    Each stack trains r1^2 + r2^2 + r3^2 parameters; modules whose paths differ only in digits are one stack. Without
    `projections` and `target_modules` q and v are adapted. With `projections` the tuner writes into `target_modules` where it
    found them (`FoundModules`); that is of one model, so it is not saved. One draw of `dropout` serves all layers. Without
    `save_factors` they are decomposed again, or read from the store, when the adapter is loaded.
    """

    ranks: AskedRanks | None = field(
        default=None,
        metadata={"help": "(r1, r2, r3) of layers, outputs, inputs; 'all' is the full dimension; by default all, up to 64, 64"},
    )
    projections: tuple[str, ...] | None = field(default=None, metadata={"help": f"words among {', '.join(WORDS)}"})
    dropout: float = field(default=0.0, metadata={"help": "on the entries of J, in training only; the others grow"})
    scaling: float = field(default=1.0, metadata={"help": "s, the factor on the change of the weights"})
    init_epsilon: float = field(default=1e-3, metadata={"help": "J starts at I + epsilon N(0, 1); 0: at the base model"})
    init_seed: int | None = field(default=None, metadata={"help": "seeds the start of J; torch's generator draws if absent"})
    projection_map: dict[str, str] | None = field(default=None, metadata={"help": "word -> end of the module's path"})
    save_factors: bool = field(default=False, metadata={"help": "keep the frozen factors in the saved adapter"})
    target_modules: list[str] | set[str] | str | None = field(
        default=None, metadata={"help": "names' ends, a regular expression or 'all-linear', instead of projections"}
    )
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "modules to leave out"})
    modules_to_save: list[str] | None = field(default=None, metadata={"help": "modules trained and saved whole"})
    layers_to_transform: list[int] | int | None = field(default=None, metadata={"help": "refused; see the class"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("CRAFT")
        self.ranks = None if self.ranks is None else check_ranks(self.ranks)
        if self.projections is not None:
            self.projections = (self.projections,) if isinstance(self.projections, str) else tuple(self.projections)
            if not self.projections or len(set(self.projections)) != len(self.projections):
                raise ValueError(f"projections are one or more words, each once; got {list(self.projections)}")
        if isinstance(self.target_modules, FoundModules):
            self.target_modules = None
        elif isinstance(self.target_modules, list | tuple | set):
            self.target_modules = sorted(self.target_modules)
        if self.projections is not None and self.target_modules is not None:
            raise ValueError("give projections or target_modules, not both: they are two ways to name the same modules")
        if self.layers_to_transform is not None:
            raise ValueError(
                "layers_to_transform is not possible with CRAFT: its factors are those of all layers' weights stacked, so "
                "leaving layers out changes every layer's adapter. Use exclude_modules to decompose fewer layers."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a probability from 0 to below 1; got {self.dropout}")
        if not self.scaling > 0:
            raise ValueError(f"scaling is positive; got {self.scaling}")
        if not self.init_epsilon >= 0:
            raise ValueError(f"init_epsilon is 0 or more; got {self.init_epsilon}")

    @property
    def words(self) -> tuple[str, ...]:
        """The projections in force, as words; empty if `target_modules` chooses the modules."""
        if self.projections is not None:
            return self.projections
        return DEFAULT_PROJECTIONS if self.target_modules is None or isinstance(self.target_modules, FoundModules) else ()

    def to_dict(self) -> dict[str, Any]:
        """Returns what is saved: modules that the user chose, but no `FoundModules`."""
        fields_to_save: dict[str, Any] = super().to_dict()
        return fields_to_save | ({"target_modules": None} if isinstance(self.target_modules, FoundModules) else {})
