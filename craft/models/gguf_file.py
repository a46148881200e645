"""A base model in one GGUF file, `FOLDER/FILE.gguf`: what its header says, and which file it is.

    header    magic, version, counts │ metadata: key, type, value │ table of tensors: name, sides, format, place
    data      the tensors: plain floats, or blocks of a quantized format

The header is read without the data: a plan reads nothing else, and a file that is cut off or of another kind is found before
anything trains. transformers reads the weights, as plain floats: a quantized tensor is dequantized (`loading`).

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from craft.models.errors import ModelUnavailable, ModelUnsuited
from craft.words import nearest

SUFFIX = ".gguf"
MODEL_DIGEST = "model_sha256"
"""Name of the file's SHA-256 among the facts of a run."""
FLOATS = ("F32", "F16", "BF16", "F64")
VERSIONS = (2, 3)
"""Version 1 counted in 32 bits; transformers does not read it either."""

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = 32
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class GgufFile:
    """What a header says.

    Attributes:
        path: absolute.
        metadata: values by key; of an array its length.
        tensors: format by the name of the tensor, such as `Q4_0`.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, str]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def note(self) -> str:
        """What a reader of a plan or a result must know of the weights."""
        counted = Counter(self.tensors.values()).most_common()
        formats = ", ".join(f"{name} {number}" for name, number in counted)
        done = "read" if set(self.tensors.values()) <= set(FLOATS) else "dequantized"
        return f"weights {done} from GGUF (tensors: {formats})"


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return name.lower().endswith(SUFFIX)


def gguf_note(name: str) -> str | None:
    """`GgufFile.note` of the model called `name`; None for a model that is no GGUF file."""
    return gguf_file(name).note if is_gguf(name) else None


def gguf_digest(name: str) -> str | None:
    """SHA-256 of the file of the model called `name`, 64 hexadecimal digits; None for a model that is no GGUF file."""
    return _digest(*_version(gguf_file(name).path)) if is_gguf(name) else None


def gguf_file(name: str) -> GgufFile:
    """The header of the model called `name`, `FOLDER/FILE.gguf`.

    Raises:
        ModelUnavailable: no such file, one that is cut off or no GGUF file, or the package `gguf` is missing.
        ModelUnsuited: a GGUF file that transformers cannot read: a part of a split model, another version or format.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelUnavailable(_absent(name, path))
    if find_spec("gguf") is None:
        raise ModelUnavailable(f"model {name} is a GGUF file, which the package gguf reads: pip install 'craft-sweeps[gguf]'")
    return _header(*_version(path))


def files_in(folder: Path) -> list[str]:
    """Names of the GGUF files in a folder."""
    return sorted(one.name for one in folder.iterdir() if is_gguf(one.name)) if folder.is_dir() else []


def _absent(name: str, path: Path) -> str:
    if path.is_dir():
        return f"model {name} is a folder; give the GGUF file in it, as {name}/FILE.gguf"
    others = files_in(path.parent)
    if not path.parent.is_dir():
        return f"model {name}: the folder {path.parent} does not exist; give FOLDER/FILE.gguf, a file on this machine"
    if not others:
        return f"model {name} does not exist, and {path.parent} holds no GGUF file; give FOLDER/FILE.gguf"
    return f"model {name} does not exist.{nearest(path.name, others)} GGUF files in {path.parent}: {', '.join(others)}"


def _version(path: Path) -> tuple[str, int, int]:
    """Path, size and time of change: equal while the file is the same."""
    found = path.stat()
    return str(path.absolute()), found.st_size, found.st_mtime_ns


@lru_cache(maxsize=64)
def _digest(path: str, _size: int, _changed: int) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=64)
def _header(path: str, size: int, _changed: int) -> GgufFile:
    with Path(path).open("rb") as stream:
        begin = stream.read(24)
        if begin[:4] != b"GGUF":
            raise ModelUnavailable(f"model {path} is no GGUF file: it begins with {begin[:4]!r}, not with b'GGUF'")
        if len(begin) < 24:
            raise ModelUnavailable(_cut_off(path, size))
        version, tensors, values = struct.unpack("<IQQ", begin[4:])
        if version not in VERSIONS:
            raise ModelUnsuited(
                f"model {path} has GGUF version {version}; versions {' and '.join(map(str, VERSIONS))}, with the lowest byte "
                "first, can be read. Convert it with a newer llama.cpp"
            )
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                found, end = _read(_Cursor(content, 24), path, tensors, values)
                _refuse_part(found)
            except (ModelUnavailable, ModelUnsuited):
                raise
            except (struct.error, KeyError, ValueError, ZeroDivisionError, RecursionError) as error:
                raise ModelUnavailable(_cut_off(path, size)) from error
    if end > size:
        raise ModelUnavailable(_cut_off(path, size, end))
    return found


def _cut_off(path: str, size: int, whole: int | None = None) -> str:
    there = f"{size:,} of {whole:,} bytes are there" if whole else f"its {size:,} bytes end within the header"
    return f"model {path} is cut off or damaged: {there}. Copy or download it again"


def _read(cursor: _Cursor, path: str, tensors: int, values: int) -> tuple[GgufFile, int]:
    """The header, and the number of bytes that the whole file needs."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    metadata = {}
    for _ in range(values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    metadata["general.architecture"]  # a KeyError without it
    formats, ends = {}, [0]
    for _ in range(tensors):
        name = cursor.text()
        sides = [cursor.number("Q") for _ in range(cursor.number("I"))]
        kind, place = cursor.number("I"), cursor.number("Q")
        try:
            form = GGMLQuantizationType(kind)
        except ValueError:
            raise ModelUnsuited(
                f"model {path}: the tensor {name} has format number {kind}, which this version of the package gguf does not "
                "know: pip install -U gguf"
            ) from None
        numbers, size = GGML_QUANT_SIZES[form]
        formats[name] = form.name
        ends.append(place + prod(sides) // numbers * size)
    alignment = int(metadata.get("general.alignment", _ALIGNMENT))
    begin = -(-cursor.at // alignment) * alignment
    return GgufFile(Path(path), metadata, formats), begin + max(ends)


def _refuse_part(file: GgufFile) -> None:
    named = _PART.search(file.path.name)
    parts = int(file.metadata.get("split.count") or (named[1] if named else 1))
    if parts > 1:
        raise ModelUnsuited(
            f"model {file.path} is one of {parts} parts of a model, and transformers reads a model from one file only. Join "
            "them with llama.cpp's llama-gguf-split --merge FIRST_PART WHOLE.gguf, and give the whole"
        )


class _Cursor:
    """Reads values from a place in a header and moves on; a value beyond the end is a struct.error."""

    def __init__(self, content: mmap.mmap, at: int) -> None:
        self.content, self.at = content, at

    def number(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.content, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.content):
            raise struct.error("beyond the end")

    def text(self) -> str:
        begin = self.at + 8
        self.skip(8 + struct.unpack_from("<Q", self.content, self.at)[0])
        return self.content[begin : self.at].decode()

    def value(self, kind: int) -> Any:
        """A value of that type; of an array its length."""
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            return self.number(_FIXED[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in _FIXED:
            self.skip(count * struct.calcsize(_FIXED[inner]))
            return count
        for _ in range(count):
            if inner == _TEXT:
                self.skip(8 + struct.unpack_from("<Q", self.content, self.at)[0])
            else:
                self.value(inner)
        return count
