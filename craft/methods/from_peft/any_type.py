"""`peft`: any tuner of the installed PEFT, by PEFT's own names.

    {method: peft, peft_type: LILY, config: {r: 8, num_B: 3}, projections: [q, k, v, o]}

`config` holds what PEFT's configuration class of the type takes. It is part of a run's identity as it is written, without
PEFT's defaults: they would give other keys to the same run wherever another PEFT is installed. `installed` says what this
one has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from craft.methods.method import BuildContext, Method
from craft.settings import Projections, Settings

if TYPE_CHECKING:
    from torch import nn

NAME = "peft"
TRAINS_NORMS = "LN_TUNING"


class PeftParameters(Settings):
    """`projections` stays empty if PEFT's class has no `target_modules`."""

    peft_type: str = Field(description="Required. PEFT's name of the type, such as `LILY`.")
    config: dict[str, Any] = Field(
        {}, description="Parameters of PEFT's configuration class, by PEFT's names; each may be a value, values or a range."
    )
    projections: Projections | None = Field(
        None,
        description="Adapted projections of every layer; q and v if neither they nor `target_modules` in `config` are given.",
    )

    @field_validator("peft_type")
    @classmethod
    def _is_installed(cls, name: str) -> str:
        from craft.methods.from_peft.installed import find_type

        return find_type(name)

    @field_validator("config")
    @classmethod
    def _is_pefts(cls, config: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        peft_type = info.data.get("peft_type")
        if peft_type is None:
            return config
        from craft.methods.from_peft.installed import config_model, whole_config

        try:
            config_model(peft_type).model_validate(config)
        except ValidationError as error:
            raise ValueError("; ".join(_sentence(mistake, peft_type) for mistake in error.errors())) from None
        whole_config(peft_type, config)
        return config

    @model_validator(mode="after")
    def _one_way_to_name_modules(self) -> PeftParameters:
        from craft.methods.from_peft.installed import takes_projections

        named = "target_modules" in self.config
        able = takes_projections(self.peft_type)
        if self.projections and (named or not able):
            why = "config.target_modules names the modules too; keep one" if named else f"{self.peft_type} adapts none"
            raise ValueError(f"projections {list(self.projections)} are given, and {why}")
        if self.projections is None:
            object.__setattr__(self, "projections", ("q", "v") if able and not named else ())
        return self


def build(model: nn.Module, parameters: PeftParameters, context: BuildContext) -> nn.Module:
    """Puts the tuner on `model`."""
    from craft.methods.from_peft.building import put_on
    from craft.models.heads import head_names, is_head
    from craft.models.projections import target_modules

    settings = dict(parameters.config)
    if parameters.peft_type == TRAINS_NORMS and any(weight.itemsize < 4 for weight in model.parameters()):
        raise ValueError(
            f"PEFT's {TRAINS_NORMS} trains the base's own norms, which need float32: take precision: bf16-mixed or float32"
        )
    if parameters.projections:
        settings["target_modules"] = target_modules(model, parameters.projections)
    built = put_on(model, parameters.peft_type, settings, context.task_type)
    heads = head_names(built)
    trained = [name for name, weight in built.named_parameters() if weight.requires_grad]
    if heads and not any(is_head(name, heads) for name in trained):
        raise ValueError(
            f"PEFT's {parameters.peft_type} trains no task head; it is for tasks that a language model answers in words"
        )
    for weight in built.parameters():
        if weight.requires_grad and weight.itemsize < 4:
            weight.data = weight.data.float()
    return built


def label(parameters: Any) -> str:
    chosen = [f"{name} {_text(value)}" for name, value in parameters.config.items()]
    return ", ".join([" ".join([parameters.peft_type, *chosen]), *filter(None, [" ".join(parameters.projections or ())])])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={_text(item)}" for name, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(error: Any, peft_type: str) -> str:
    from craft.methods.from_peft.installed import unknown_key

    name = error["loc"][0]
    if error["type"] == "extra_forbidden":
        return unknown_key(peft_type, name)
    return f"{name}: {error['msg'].removeprefix('Value error, ')}"


METHOD: Method = Method(
    name=NAME,
    title="PEFT",
    reference="any tuner of huggingface/peft",
    parameters=PeftParameters,
    build=build,
    label=label,
    decays_to_start=True,
)
