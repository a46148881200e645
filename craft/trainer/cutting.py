"""Cuts a finished adapter to fewer parameters without training it: `cut_adapter`.

======================  =================================================================================================
craft, craft_star       to three ranks: J1[:k1, :k1], J2[:k2, :k2], J3[:k3, :k3] with the leading columns of U1, U2, U3: HOSVD
                        factors nest, so this is a CRAFT adapter of ranks k
                        to one rank, or a number of parameters: J - I of every J to its nearest matrix of rank k, by SVD, or all
                        of them under one threshold. The ranks stay. J of side r has 2 r k parameters then, or its own r^2
                        where that is no more
lora, rslora, qlora     to one rank, or a number of parameters: s B A of every module likewise (`craft.factors.low_rank`)
======================  =================================================================================================

What training changed lies in few directions, which are not the leading ones of the weights. So the SVD holds a score at numbers
of parameters at which leading slices of J have lost it (docs/measurements/nested.md).

The result is an adapter as training leaves one. Its record says of which run it is cut (`RunSpec.cut_from`). It holds no
scores until it is scored (`craft.trainer.rescoring`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from craft.factors.low_rank import halves, product_svd, ranks_within
from craft.methods import find_method
from craft.methods.method import BuildContext
from craft.models.heads import TASK_TYPES
from craft.models.loading import load_model, load_tokenizer
from craft.models.quiet import quiet_libraries
from craft.scoring.forgetting import BEFORE
from craft.settings import CutFrom
from craft.spec import RunSpec
from craft.trainer.adapter_folder import RUN_FILE, refuse_other_file, save_adapter
from craft.trainer.checkpoint import MANIFEST_FILE, write_folder
from craft.trainer.counting import count
from craft.trainer.resizing import resized
from craft.tuners.craft.fingerprint import FACTORS, FINGERPRINT

BY_RANKS, BY_SVD = ("craft", "craft_star"), ("lora", "rslora", "qlora")
BUDGET = "parameters:"
_ADAPTER_FILE, _CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_NOT_ITS_OWN = ("optimizer_bytes", "peak_memory_bytes", "step_seconds", "tokens_per_second")


@dataclass(frozen=True)
class Cut:
    """What to cut an adapter to: three `ranks`, one `rank` for every module or J, or a number of `parameters` in all."""

    ranks: tuple[int | str, int | str, int | str] | None = None
    rank: int | None = None
    parameters: int | None = None

    @classmethod
    def read(cls, text: str, method: str) -> Cut:
        """What a person means by `text`: `8` or `parameters:20000`; for CRAFT `all,16,16` too.

        Raises:
            ValueError: adapters of `method` cannot be cut, or `text` is nothing to cut them to.
        """
        if method not in BY_RANKS + BY_SVD:
            raise ValueError(
                f"adapters of {method} cannot be cut: what they learn does not nest. "
                f"Those of {', '.join(BY_RANKS + BY_SVD)} can"
            )
        plain = text.replace(" ", "").replace("_", "")
        words = plain.removeprefix(BUDGET).split(",")
        if all(word == "all" or (word.isascii() and word.isdigit() and int(word) > 0) for word in words):
            sizes = [word if word == "all" else int(word) for word in words]
            if method in BY_RANKS and len(sizes) == 3 and not plain.startswith(BUDGET):
                return cls(ranks=(sizes[0], sizes[1], sizes[2]))
            if len(sizes) == 1 and isinstance(sizes[0], int):
                return cls(parameters=sizes[0]) if plain.startswith(BUDGET) else cls(rank=sizes[0])
        slices = "three ranks, such as all,16,16, " if method in BY_RANKS else ""
        raise ValueError(f"an adapter of {method} is cut to {slices}a rank, such as 4, or {BUDGET}20000; got {text!r}")

    def __str__(self) -> str:
        if self.ranks is not None:
            return ",".join(map(str, self.ranks))
        return str(self.rank) if self.rank is not None else f"{BUDGET}{self.parameters}"


def cut_adapter(folder: Path, cut: Cut, to: Path, base: str | None = None) -> RunSpec:
    """Writes the adapter in `folder`, cut, to `to`.

    Args:
        base: name or folder of the base model here, if it is not the name that the adapter was trained with.

    Returns:
        The run that the new adapter's record tells of.

    Raises:
        ValueError: the adapter is smaller than that, is itself a cut one, or its base model cannot be had.
    """
    record = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    spec = RunSpec.recorded(record["spec"])
    if spec.cut_from is not None:
        raise ValueError(
            f"{folder} holds an adapter that was cut from run {spec.cut_from.run}; cut the one that was trained, or its "
            "leading directions are those of the first cut"
        )
    counts = {name: value for name, value in record["counts"].items() if name not in _NOT_ITS_OWN}
    of_base = {name: value for name, value in record["metrics"].items() if name == BEFORE}
    record |= {"metrics": of_base, "notes": [], "counts": counts}
    if cut.ranks is not None:
        return _slice(folder, record, spec, cut, to, base)
    return (_flatten if spec.method in BY_RANKS else _truncate)(folder, record, spec, cut, to)


def _slice(folder: Path, record: dict[str, Any], spec: RunSpec, cut: Cut, to: Path, base: str | None) -> RunSpec:
    """CRAFT: the leading part of J over the leading factors."""
    row = find_method(spec.method)
    smaller = _cut_spec(spec, cut, {"ranks": cut.ranks})
    name = base or spec.model
    refuse_other_file(name, record)
    model: Any = load_model(
        name,
        record["kind"],
        record["labels"],
        revision=spec.revision,
        precision=spec.training.precision,
        device="cpu",
        seed=spec.seed,
        pad_token_id=load_tokenizer(name, revision=spec.revision).pad_token_id,
    )
    parameters = row.parameters.model_validate(smaller.parameters)
    _refuse_larger(model, spec, parameters)
    with quiet_libraries():
        model = row.build(model, parameters, BuildContext(TASK_TYPES[record["kind"]], seed=spec.seed))
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    learnt = load_peft_weights(str(folder), device="cpu")
    # The smaller model keeps its own record of the factors that J needs.
    weights = {key: weight for key, weight in learnt.items() if FINGERPRINT not in key and FACTORS not in key}
    set_peft_model_state_dict(model, own | resized(weights, own, identity=True))
    for config in model.peft_config.values():
        config.revision = spec.revision
    metrics = record["metrics"] | (row.describe(model) if row.describe is not None else {})
    counts = record["counts"] | count(model).known()
    counts = {key: value for key, value in counts.items() if key not in _NOT_ITS_OWN}
    save_adapter(model, to, record | {"spec": smaller.model_dump(mode="json"), "metrics": metrics, "counts": counts})
    return smaller


def _refuse_larger(model: nn.Module, spec: RunSpec, parameters: Any) -> None:
    row = find_method(spec.method)
    assert row.resolve is not None, "CRAFT resolves its ranks"
    wanted = row.resolve(model, parameters)["ranks"]
    trained = row.resolve(model, row.parameters.model_validate(spec.parameters))["ranks"]
    for stack, ranks in wanted.items():
        for mode, (rank, had) in enumerate(zip(ranks, trained[stack], strict=True), start=1):
            if rank > had:
                raise ValueError(
                    f"r{mode} of projection {stack} is {rank}, but the adapter was trained with {had}: cutting cannot add "
                    f"directions. Give r{mode} from 1 to {had}"
                )


def _flatten(folder: Path, record: dict[str, Any], spec: RunSpec, cut: Cut, to: Path) -> RunSpec:
    """CRAFT: the leading singular directions of every J - I. The file holds J itself, as that of a trained adapter does."""
    tensors = load_file(folder / _ADAPTER_FILE)
    js = {key: tensor for key, tensor in tensors.items() if ".craft_J." in key}
    spectra = {key: torch.linalg.svd(j.double() - torch.eye(len(j), dtype=torch.float64)) for key, j in js.items()}
    # From this rank on the factors of J - I have as many parameters as J: then nothing is cut of it.
    whole = {key: -(-len(j) // 2) for key, j in js.items()}
    values = {key: s[: whole[key]] for key, (_, s, _) in spectra.items()}
    costs, numbers = {key: 2 * len(j) for key, j in js.items()}, sum(j.numel() for j in js.values())
    ranks = _ranks(cut, values, costs, numbers, f"from rank {max(whole.values())} on nothing is cut")
    kept = 0
    for key, j in js.items():
        if ranks[key] >= whole[key]:
            kept += j.numel()
            continue
        kept += costs[key] * ranks[key]
        left, right = halves(spectra[key], ranks[key])
        tensors[key] = (torch.eye(len(j), dtype=torch.float64) + left @ right).to(j.dtype)
    counts = record["counts"] | {"trainable_parameters": kept}
    counts["total_parameters"] += kept - numbers
    return _write(folder, tensors, record, _cut_spec(spec, cut, {}), counts, to)


def _truncate(folder: Path, record: dict[str, Any], spec: RunSpec, cut: Cut, to: Path) -> RunSpec:
    """LoRA: the leading singular directions of every module's product, with its scale folded into both halves."""
    config = json.loads((folder / _CONFIG_FILE).read_text(encoding="utf-8"))
    tensors = load_file(folder / _ADAPTER_FILE)
    modules = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    spectra = {name: product_svd(*_pair(tensors, name)[::-1], scale) for name in modules}
    costs = {name: tensors[f"{name}.lora_A.weight"].shape[1] + len(tensors[f"{name}.lora_B.weight"]) for name in modules}
    values = {name: singular for name, (_, singular, _) in spectra.items()}
    said = f"the adapter was trained with {config['r']}: cutting cannot add directions"
    ranks = _ranks(cut, values, costs, int(config["r"]) * sum(costs.values()), said)
    before = sum(one.numel() for name in modules for one in _pair(tensors, name))
    for name in modules:
        a, _ = _pair(tensors, name)
        del tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
        if ranks[name]:
            b_cut, a_cut = halves(spectra[name], ranks[name])
            tensors[f"{name}.lora_A.weight"] = a_cut.to(a.dtype).contiguous()
            tensors[f"{name}.lora_B.weight"] = b_cut.to(a.dtype).contiguous()
    config |= _config_of(config, {name.removeprefix("base_model.model."): rank for name, rank in ranks.items()})
    smaller = _cut_spec(spec, cut, {"rank": config["r"], "alpha": config["lora_alpha"]})
    trainable = sum(rank * costs[name] for name, rank in ranks.items())
    counts = record["counts"] | {"trainable_parameters": trainable}
    counts["total_parameters"] += trainable - before
    counts["adapter_bytes"] = sum(one.numel() * one.element_size() for one in tensors.values())
    return _write(folder, tensors, record, smaller, counts, to, config)


def _ranks(cut: Cut, values: dict[str, Tensor], costs: dict[str, int], whole: int, said: str) -> dict[str, int]:
    """The rank of every product.

    Args:
        values: its singular values.
        costs: the parameters of one of them.
        whole: the parameters of all.
        said: what the largest rank means, for a message.

    Raises:
        ValueError: it asks for more than was trained, or for fewer parameters than one direction takes.
    """
    most = max(map(len, values.values()))
    if cut.rank is not None:
        if cut.rank > most:
            raise ValueError(f"the rank is {cut.rank}, but {said}. Give a rank from 1 to {most}")
        return dict.fromkeys(values, cut.rank)
    assert cut.parameters is not None
    if cut.parameters > whole:
        raise ValueError(f"{cut.parameters:,} parameters are more than the {whole:,} that the adapter was trained with")
    if cut.parameters == whole:
        return {name: len(each) for name, each in values.items()}
    ranks = ranks_within(values, costs, cut.parameters)
    if not any(ranks.values()):
        raise ValueError(
            f"{cut.parameters:,} parameters are too few for one direction; the first takes up to {max(costs.values()):,}"
        )
    return ranks


def _write(
    folder: Path,
    tensors: dict[str, Tensor],
    record: dict[str, Any],
    smaller: RunSpec,
    counts: dict[str, float],
    to: Path,
    config: dict[str, Any] | None = None,
) -> RunSpec:
    """The folder of the cut adapter: PEFT's configuration is that of the whole one, unless there is another."""

    def fill(aside: Path) -> None:
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE, _ADAPTER_FILE))
        save_file(tensors, aside / _ADAPTER_FILE, metadata={"format": "pt"})
        if config is not None:
            (aside / _CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
        content = record | {"spec": smaller.model_dump(mode="json"), "counts": counts}
        (aside / RUN_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")

    write_folder(to, fill)
    return smaller


def _config_of(config: dict[str, Any], ranks: dict[str, int]) -> dict[str, Any]:
    """PEFT's settings for these ranks, with a scale of 1 in every module. A module of rank 0 is left out."""
    largest = max(ranks.values())
    alpha = (lambda rank: rank**0.5) if config["use_rslora"] else (lambda rank: rank)
    others = {name: rank for name, rank in ranks.items() if 0 < rank < largest}
    settings: dict[str, Any] = {"r": largest, "lora_alpha": alpha(largest)}
    settings |= {"rank_pattern": others, "alpha_pattern": {name: alpha(rank) for name, rank in others.items()}}
    if not all(ranks.values()):
        settings["target_modules"] = sorted(name for name, rank in ranks.items() if rank)
    return settings


def _pair(tensors: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]


def _cut_spec(spec: RunSpec, cut: Cut, changed: dict[str, Any]) -> RunSpec:
    content = spec.model_dump(mode="json")
    # A slice of nested ranks is a plain CRAFT adapter, and so is what is cut from it.
    own = {name: value for name, value in content["parameters"].items() if name not in ("nested", "nested_training")}
    content["parameters"] = own | changed
    content["cut_from"] = CutFrom(run=spec.key, to=str(cut)).model_dump()
    return RunSpec.recorded(content)
