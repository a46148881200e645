"""Where the task head starts (`training.head_start`): `start_head`.

    random    drawn from the seed
    labels    drawn; the bias is the labels' mean, or the logarithms of their shares
    probe     linear probing before fine-tuning (arXiv 2202.10054): logistic or ridge regression on the frozen model's features

The fit B z + c of z = (x - m) / s, with mean m and spread s of each feature, is stored as W x + b: W = B / s, b = c - W m. A
layer without a bias (LLaMA's `score`) has W = B / s + b o, where o x is the linear function of the features nearest to 1.
Equal runs share one fit, kept next to the decompositions (`craft.factors.store`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from craft.factors.store import Store, Tensors, hash_weights
from craft.models.compute import base_of, computes_in_bfloat16
from craft.models.loading import head_names
from craft.processes import Group
from craft.results import name_memory_errors
from craft.scoring.encoding import Collator, Encoded
from craft.scoring.scorer import predict
from craft.settings import TrainingSettings
from craft.tasks.task import Kind

ALGORITHM = "head-probe-2"
"""Names the fit; part of every stored head's address, as its penalties are. Raise it when results change otherwise."""
MOST_EXAMPLES = 10_000
"""Examples of the training split that the fit sees, at most: a seeded sample of a larger one."""
STRENGTH = 2.0
"""C of the logistic regression, the inverse of its penalty, times the number of examples."""
PENALTY = 10.0
"""The ridge regression's, for each example. Both are far stronger than a head alone would want: a head that fits the training
split leaves the adapter nothing to learn (docs/methods.md)."""

STEADY = 0.1
"""The penalty, for each example, of the constant that a layer without a bias has."""


def start_head(
    model: nn.Module, training: TrainingSettings, kind: Kind, train: Encoded, collator: Collator, *, shared: bool
) -> None:
    """Puts the start of the settings into the head of `model`. Where other runs have its features (`shared`), the fit is kept.

    Raises ValueError for a head that cannot start so, OutOfMemory as an evaluation does.
    """
    if training.head_start == "random":
        return
    holder, name = _last_linear(model)
    layer, batch_size = getattr(holder, name), training.eval_batch_size
    if training.head_start == "labels":
        if layer.bias is None:
            raise ValueError("training.head_start: labels sets the bias of the head, and this model's head has none; use probe")
        _set(layer, {"bias": torch.from_numpy(_constant(train.labels, kind, len(layer.weight)))})
        return
    sample = _sample(train)

    def fit() -> dict[str, Tensor]:
        setattr(holder, name, nn.Identity())
        try:
            # Only the process that holds the store's lock computes.
            features = predict(model, sample, collator, batch_size, group=Group())
        finally:
            setattr(holder, name, layer)
        weight, bias = fit_linear(features, sample.labels, kind, len(layer.weight), bias=layer.bias is not None)
        parts = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return {part: torch.from_numpy(values.astype(np.float32)) for part, values in parts.items()}

    with name_memory_errors(f"evaluation batches of {batch_size} texts", scoring=True):
        if shared:
            origin = _origin(model, layer, kind, sample, collator, batch_size)
            _set(layer, Store().get("the start of a task head", origin, lambda _held: fit()))
        else:
            _set(layer, fit())


def fit_linear(
    features: np.ndarray, labels: np.ndarray, kind: Kind, outputs: int, *, bias: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Fits the linear layer that predicts `labels` (n,) from `features` (n, d): weight (outputs, d) and bias (outputs,).

    A class without an example gets the least of all biases. Labels of a single class or value give weights of 0.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    z = scaler.fit_transform(features.astype(np.float64))
    weight, constant = np.zeros((outputs, z.shape[1])), _constant(labels, kind, outputs)
    present = np.unique(labels)
    if kind == "regression" and len(present) > 1:
        fit = Ridge(PENALTY * len(labels)).fit(z, labels.astype(np.float64))
        weight[0], constant = fit.coef_, np.atleast_1d(fit.intercept_)
    elif len(present) > 1:
        fit = LogisticRegression(C=STRENGTH / len(labels), max_iter=1000).fit(z, labels)
        two = len(present) == 2
        weight[present] = np.concatenate([-fit.coef_, fit.coef_]) / 2 if two else fit.coef_
        intercept = np.concatenate([-fit.intercept_, fit.intercept_]) / 2 if two else fit.intercept_
        constant = np.full(outputs, intercept.min() - np.log(len(labels)))
        constant[present] = intercept
    weight /= scaler.scale_
    constant = constant - weight @ scaler.mean_
    if bias:
        return weight, constant
    constant_fit = Ridge(STEADY * len(labels), fit_intercept=False).fit(z + scaler.mean_ / scaler.scale_, np.ones(len(labels)))
    return weight + np.outer(constant, constant_fit.coef_ / scaler.scale_), None


def _constant(labels: np.ndarray, kind: Kind, outputs: int) -> np.ndarray:
    """Returns the answer of a head without features, (outputs,): the mean, or the logarithms of the shares (Laplace's)."""
    if kind == "regression":
        return np.array([labels.mean(dtype=np.float64)])
    return np.log((np.bincount(labels, minlength=outputs) + 1) / (len(labels) + outputs))


def _last_linear(model: nn.Module) -> tuple[Any, str]:
    """Returns the module that holds the head's last linear layer, and its name there, by PEFT's copy of a head."""
    base = base_of(model)
    heads = head_names(model)
    layers = [
        path
        for path, module in base.named_modules()
        if isinstance(module, nn.Linear) and path.split(".")[0] in heads and "original_module" not in path.split(".")
    ]
    if not layers or base.get_submodule(layers[-1]).out_features != base.config.num_labels:
        raise ValueError(
            f"training.head_start: probe fits the last linear layer of a head, and that of {type(base).__name__} ends "
            "otherwise; use head_start: random"
        )
    holder, _, name = layers[-1].rpartition(".")
    return base.get_submodule(holder), name


def _set(layer: Any, parts: Tensors) -> None:
    with torch.no_grad():
        for name, values in parts.items():
            getattr(layer, name).copy_(values)


def _sample(train: Encoded) -> Encoded:
    if len(train) <= MOST_EXAMPLES:
        return train
    rows = np.sort(np.random.default_rng(0).choice(len(train), MOST_EXAMPLES, replace=False))
    examples = [train[int(row)] for row in rows]
    columns = {name: np.concatenate([example[name] for example in examples]) for name in train.columns}
    return Encoded(columns, np.concatenate([[0], np.cumsum(train.lengths[rows])]), train.labels[rows])


def _origin(model: Any, layer: Any, kind: Kind, sample: Encoded, collator: Collator, batch_size: int) -> dict[str, Any]:
    """Describes everything that the fit is made of."""
    layer_ids = {id(value) for value in layer.state_dict(keep_vars=True).values()}
    weights = [value for value in model.state_dict(keep_vars=True).values() if id(value) not in layer_ids]
    data = hashlib.sha256()
    for name, values in [*sample.columns.items(), ("offsets", sample.offsets), ("labels", sample.labels)]:
        data.update(f"{name} {values.dtype} {values.shape}".encode())
        data.update(np.ascontiguousarray(values).data)
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NAMES}
    return {
        "algorithm": [ALGORITHM, STRENGTH, PENALTY, STEADY],
        "model": type(model).__name__,
        "config": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
        "weights": hash_weights(weights),
        "data": data.hexdigest(),
        "kind": kind,
        "examples": len(sample),
        "shape": list(layer.weight.shape),
        "bias": layer.bias is not None,
        "padding": collator.pad_token_id,
        "batch_size": batch_size,
        "bfloat16": computes_in_bfloat16(model),
        "float32_products": torch.backends.cuda.matmul.fp32_precision,
        "device": next(model.parameters()).device.type,
    }


_NAMES = ("_name_or_path", "id2label", "label2id")
"""Of a configuration: what changes no feature."""
