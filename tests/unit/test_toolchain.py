"""What is said where the parts that a GPU takes are missing, or do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import tvm

import babytriton as bt
from babytriton.runtime import toolchain


class Device:
    """A device of TVM's, which is there or not."""

    def __init__(self, exist: bool) -> None:
        self.exist = exist


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    for cached in (toolchain._require_gpu, toolchain._require_arch):
        cached.cache_clear()
    yield
    for cached in (toolchain._require_gpu, toolchain._require_arch):
        cached.cache_clear()


def refused(monkeypatch: pytest.MonkeyPatch, **machine: Any) -> str:
    """What is said on a machine; nothing if all fits."""
    machine = {
        "torch": "13.0",
        "driver": "13.1",
        "available": True,
        "tvm": True,
        "libraries": ["libcudart.so.13"],
        "capability": (8, 0),
        **machine,
    }
    monkeypatch.setattr(torch.version, "cuda", machine["torch"])
    monkeypatch.setattr(toolchain, "driver_version", lambda: machine["driver"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: machine["available"])
    monkeypatch.setattr(tvm, "cuda", lambda index: Device(machine["tvm"]))
    monkeypatch.setattr(toolchain, "load_runtime", lambda: None)
    monkeypatch.setattr(toolchain, "libraries", lambda pattern: machine["libraries"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: machine["capability"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    try:
        toolchain.require_gpu("f", "sm_80")
    except RuntimeError as error:
        return str(error)
    return ""


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch) == ""
    assert refused(monkeypatch, capability=(8, 6)) == ""


@pytest.mark.parametrize(
    ("machine", "found", "install"),
    [
        ({"torch": None}, "was built without CUDA", "lower, schedule, compile and source work"),
        (
            {"available": False, "driver": None},
            "there is no driver: libcuda.so.1 was not found",
            "install a driver for CUDA 13 or newer (580 or newer)",
        ),
        (
            {"available": False, "driver": "12.4"},
            f"the driver is for CUDA 12.4; torch {torch.__version__} needs 13.0",
            "install a driver for CUDA 13 or newer",
        ),
        ({"available": False}, "the driver, for CUDA 13.1, finds no GPU", "compile and source"),
        (
            {"tvm": False, "driver": "12.8", "torch": "12.8"},
            "the driver is for CUDA 12.8; TVM's runtime needs 13.0",
            "install a driver for CUDA 13 or newer",
        ),
        (
            {"tvm": False, "torch": "12.8", "libraries": []},
            f"TVM's runtime needs libcudart.so.13; torch {torch.__version__} brings CUDA 12.8",
            'pip install "nvidia-cuda-runtime>=13,<14"',
        ),
        (
            {"capability": (9, 0)},
            "it was compiled for sm_80, and a GPU is sm_90",
            "compile for Target('cuda', arch='sm_90')",
        ),
        (
            {"capability": (7, 5)},
            "it was compiled for sm_80, and a GPU is sm_75",
            "compile for Target('cuda', arch='sm_75')",
        ),
    ],
)
def test_what_does_not_fit(
    machine: dict[str, Any], found: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = refused(monkeypatch, **machine)
    assert text.startswith("error[BT201]: no GPU to run `f` on")
    assert found in text
    assert install in text


def test_hidden_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "finds no GPU (CUDA_VISIBLE_DEVICES='')" in refused(monkeypatch, available=False)


def test_the_newest_library_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a/libnvrtc.so.12", "a/libnvrtc.so.13", "b/libnvrtc.so.11.2"]
    monkeypatch.setattr(toolchain, "pip_files", lambda pattern: names)
    assert toolchain.libraries("libnvrtc.so.*") == [names[1], names[0], names[2]]


def test_each_gpu_has_its_own_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, 0) if i else (8, 6))
    assert bt.Target("cuda").resolved().arch == "sm_86"
    assert bt.Target("cuda").resolved(1).arch == "sm_90"
    assert bt.Target("cuda", arch="sm_80").resolved(1).arch == "sm_80"
