"""`method: peft`: every type of the installed PEFT is a case of the contract or stands in CANNOT, and mistakes are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from peft import PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

from craft.methods import METHODS, shown_method
from craft.methods.by_peft_name import CANNOT, REFUSED_SETTINGS, config_model
from craft.spec import RunSpec
from craft.trainer.counting import planned_counts
from tests.craft.methods.cases import TYPES


def test_every_type_of_the_installed_peft_trains_or_says_why_not() -> None:
    """A type that a newer PEFT adds belongs in TYPES, or with a reason in `craft.methods.by_peft_name.CANNOT`."""
    added = {kind for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items() if not config.__module__.startswith("peft.")}
    theirs = {peft_type.value for peft_type in {*PeftType} - added}  # ours, and those that another test has registered
    assert theirs == TYPES.keys() | CANNOT.keys()
    assert not TYPES.keys() & CANNOT.keys()
    for (kind, key), (values, reason) in REFUSED_SETTINGS.items():
        assert key in config_model(kind).model_fields
        assert values
        assert reason


def test_the_page_of_methods_names_every_exception() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "methods.md").read_text().split())
    limited, _, rest = page.partition(" with these exceptions: ")[2].partition(" - These cannot train here: ")
    cannot = rest.partition(" LoRA's starts from data")[0]
    assert set(re.findall(r"`([A-Z0-9_]+)`", limited)) == {name for name, case in TYPES.items() if case.words}
    assert set(re.findall(r"`([A-Z0-9_]+)`", cannot)) == CANNOT.keys()


@pytest.mark.parametrize("kind", [name for name, case in TYPES.items() if case.words and name != "SHADOW"])
def test_a_type_that_leaves_a_head_untrained_is_refused_one(kind: str, tiny_llama: str) -> None:
    spec = RunSpec(model=tiny_llama, task="toy/sentiment", method="peft", parameters=TYPES[kind].parameters)
    with pytest.raises(ValueError, match=f"{kind} trains no task head"):
        planned_counts(spec)


@pytest.mark.parametrize("kind", CANNOT)
def test_a_type_that_cannot_train_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(ValueError, match="cannot train here: ") as raised:
        METHODS["peft"].parameters.model_validate({"peft_type": kind})
    assert CANNOT[kind] in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"peft_type": "LILLY"}, "has no type 'LILLY'. Did you mean 'LILY'?"),
        ({"peft_type": "CRAFT"}, "has no type 'CRAFT'"),
        ({"peft_type": "LILY", "config": {"num_b": 2}}, "unknown key 'num_b' of PEFT's LilyConfig. Did you mean 'num_B'?"),
        ({"peft_type": "LILY", "config": {"r": "four"}}, "r: got 'four'; PEFT's LilyConfig takes int"),
        ({"peft_type": "LILY", "config": {"task_type": "SEQ_CLS"}}, "task_type is not given here: it follows from the task"),
        ({"peft_type": "WAVEFT", "config": {"wavelet_family": "db99"}}, "Wavelet family db99 not supported"),
        ({"peft_type": "LORA", "config": {"init_lora_weights": "eva"}}, "computed from data before training"),
        ({"peft_type": "ADAMSS", "config": {"use_asa": True}}, "calls between steps"),
        (
            {"peft_type": "LILY", "config": {"target_modules": ["query"]}, "projections": ["q"]},
            "names the modules too",
        ),
        ({"peft_type": "LN_TUNING", "projections": ["q"]}, "LN_TUNING adapts none"),
        ({"peft_type": "LILY", "projections": ["q", "q"]}, "each projection once"),
    ],
)
def test_a_mistake_is_said_in_words(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as raised:
        METHODS["peft"].parameters.model_validate(parameters)
    assert message in str(raised.value)


def test_what_only_the_model_shows_is_said_in_words_too(tiny_bert: str) -> None:
    def refused(peft_type: str, precision: Any = "float32", **config: Any) -> str:
        given: Any = {"parameters": {"peft_type": peft_type, "config": config}, "training": {"precision": precision}}
        with pytest.raises(ValueError, match=r".") as raised:
            planned_counts(RunSpec(model=tiny_bert, task="toy/sentiment", method="peft", **given))
        return str(raised.value)

    assert "positive integer" in refused("LILY", r=-1)
    assert "Please specify `target_modules`" in refused("LN_TUNING")
    assert "No modules were targeted" in refused("LILY", target_modules=["no_such"])
    assert "take bias: oft_only" in refused("OFT", bias="all")
    for kind, config in (("LN_TUNING", {"target_modules": ["LayerNorm"]}), ("LORA", {"modules_to_save": ["pooler"]})):
        assert "take precision: bf16-mixed or float32" in refused(kind, "bfloat16", **config)


def test_a_name_in_small_letters_is_the_same_run_and_defaults_are_left_out() -> None:
    def run(**parameters: Any) -> RunSpec:
        return RunSpec(model="m", task="toy/sentiment", method="peft", parameters=parameters)

    small = run(peft_type="lily", config={"r": 4})
    assert small == run(peft_type="LILY", config={"r": 4}, projections=["q", "v"])
    assert small.parameters["config"] == {"r": 4}
    assert shown_method("peft", small.parameters) == "peft LILY"
    labels = {METHODS["peft"].label(METHODS["peft"].parameters.model_validate(run_.parameters)) for run_ in (
        small, run(peft_type="LILY", config={"r": 8}), run(peft_type="HIRA", config={"r": 4}),
        run(peft_type="LILY", config={"r": 4}, projections=["q"]),
    )}  # fmt: skip
    assert labels == {"LILY r 4, q v", "LILY r 8, q v", "HIRA r 4, q v", "LILY r 4, q"}
