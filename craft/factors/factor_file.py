"""One decomposition as one safetensors file: written whole or not at all, and used only once its checksum is right.

The file holds core, factors and spectra; its metadata says what was decomposed (projection, shape, the weights' hash), by
which algorithm, and the SHA-256 of everything else in the file. Reading maps the file into memory, so that many processes on
a machine share its pages, and checks that hash, which is far less work than hashing the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from craft.disk import replacing
from craft.factors.hosvd import ALGORITHM, TuckerFactors

SUFFIX = ".safetensors"


class CorruptFactors(ValueError):
    """A stored decomposition is not what its writer wrote."""


@dataclass(frozen=True)
class FactorOrigin:
    """What was decomposed.

    Attributes:
        projection: the stack's name.
        shape: (L, d_out, d_in).
        dtype: of the weights.
        weights: SHA-256 of their bytes, see `hash_weights`.
        algorithm: `craft.factors.hosvd.ALGORITHM` of the code that wrote the file.
    """

    projection: str
    shape: tuple[int, int, int]
    dtype: str
    weights: str
    algorithm: str = ALGORITHM

    @cached_property
    def key(self) -> str:
        """40 hexadecimal digits: the file's name without its suffix."""
        return key_of(json.dumps(asdict(self), sort_keys=True))


def key_of(content: str) -> str:
    """40 hexadecimal digits: the name, without its suffix, of the file that stands for this content."""
    return hashlib.sha256(content.encode()).hexdigest()[:40]


def write_factors(path: Path, factors: TuckerFactors, origin: FactorOrigin) -> None:
    """Writes the file aside, flushes it and renames it, so that `path` is always a whole file, the old one or the new.

    Raises:
        OSError: the folder cannot be written, or the disk is full; nothing is left behind then.
    """
    facts = {"origin": json.dumps(asdict(origin), sort_keys=True), "squared_norm": repr(factors.squared_norm)}
    write_tensors(path, _tensors(factors), facts)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Writes contiguous tensors of the CPU with `facts` beside them, and the checksum of both, as `write_factors` does.

    Raises:
        OSError: as `write_factors`.
    """
    facts = {**facts, "sha256": _checksum(tensors, facts)}
    with replacing(path) as aside:
        try:
            save_file(dict(tensors), aside, metadata=facts)
        except SafetensorError as error:  # safetensors raises this for a full disk
            raise OSError(f"cannot write {aside}: {error}") from error


def unfinished(folder: Path, key: str = "*") -> list[Path]:
    """Files that writers of `key` are writing now, or were writing when they were killed."""
    return list(folder.glob(f".{key}.*.tmp"))


def read_origin(path: Path) -> tuple[FactorOrigin, tuple[int, int, int]]:
    """What the file says it holds, and its ranks; only its head is read.

    Raises:
        CorruptFactors: the header is damaged, or is not that of a stored decomposition.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            r1, r2, r3 = file.get_slice("core").get_shape()
        return _origin(facts), (r1, r2, r3)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptFactors(f"{path} is not a stored decomposition: {error}") from error


def read_factors(path: Path) -> tuple[TuckerFactors, FactorOrigin]:
    """The factors, mapped into memory, after their checksum was checked; a write into them stays private.

    Raises:
        CorruptFactors: the file is damaged or changed, or is not a stored decomposition.
        FileNotFoundError: there is no such file.
    """
    tensors, facts = read_tensors(path)
    try:
        factors = TuckerFactors(
            core=tensors["core"],
            u1=tensors["u1"],
            u2=tensors["u2"],
            u3=tensors["u3"],
            singular_values=(tensors["s1"], tensors["s2"], tensors["s3"]),
            squared_norm=float(facts["squared_norm"]),
        )
        return factors, _origin(facts)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFactors(f"{path} is not a stored decomposition: {error}") from error


def read_facts(path: Path) -> dict[str, str]:
    """The facts that `write_tensors` wrote; only the file's head is read, and no checksum is checked.

    Raises:
        CorruptFactors: the header is damaged.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise CorruptFactors(f"{path} is not a stored decomposition: {error}") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote, mapped into memory, after its checksum was checked.

    Raises:
        CorruptFactors: the file is damaged or changed, or has another form.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (safe_open is no mapping)
        claimed = facts.pop("sha256", None)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise CorruptFactors(f"{path} is not a stored decomposition: {error}") from error
    if claimed != _checksum(tensors, facts):
        raise CorruptFactors(f"{path} has changed since it was written: its checksum is wrong")
    return tensors, facts


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The raw bytes of a tensor in row-major order, copied only where it is not contiguous or not on the CPU."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return flat.numpy().data


def _tensors(factors: TuckerFactors) -> dict[str, Tensor]:
    parts = {name: getattr(factors, name) for name in ("core", "u1", "u2", "u3")}
    spectra = dict(zip(("s1", "s2", "s3"), factors.singular_values, strict=True))
    return {name: tensor.detach().cpu().contiguous() for name, tensor in (parts | spectra).items()}


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def _origin(facts: Mapping[str, str]) -> FactorOrigin:
    fields = json.loads(facts["origin"])
    return FactorOrigin(**{**fields, "shape": tuple(fields["shape"])})
