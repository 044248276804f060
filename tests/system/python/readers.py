"""Saves and loads with the libraries that people use, below a directory given as the only argument.

Prints one line for each check that passed; anything wrong is an exception.
"""

import hashlib
import json
import mmap
import os
import sys
import tempfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, 256, generator=generator) for name, rows in [("a", 700), ("b", 1), ("c", 33)]}


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def safetensors_files(root: Path) -> None:
    path = root / "model.safetensors"
    for seed in (1, 2):
        # A temporary file, chmod, and a rename over the old one.
        safetensors.torch.save_file(tensors(seed), path)
        assert_equal(safetensors.torch.load_file(path), tensors(seed))
    assert [entry.name for entry in root.iterdir()] == [path.name], "a temporary file was left"
    with tempfile.TemporaryDirectory() as elsewhere:
        ordinary = Path(elsewhere) / path.name
        safetensors.torch.save_file(tensors(1), ordinary)
        assert path.stat().st_mode == ordinary.stat().st_mode, "not the mode that other filesystems give"
    with safetensors.safe_open(path, "pt") as opened:
        assert_equal({name: opened.get_tensor(name) for name in opened.keys()}, tensors(2))
    try:
        safetensors.safe_open(root, "pt")
    except (OSError, safetensors.SafetensorError):
        pass
    else:
        raise AssertionError("a directory was opened as a file")


def mappings(root: Path) -> None:
    path = root / "mapped"
    content = os.urandom(1 << 20)
    path.write_bytes(content)
    with path.open("rb") as file:
        for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            with mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as mapping:
                assert mapping[:] == content


def torch_files(root: Path) -> None:
    path = root / "state.pt"
    for seed in (1, 2):
        torch.save(tensors(seed), path)
        assert_equal(torch.load(path), tensors(seed))


def allocation_and_syncs(root: Path) -> None:
    path = root / "allocated"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        assert path.stat().st_size == 1 << 20
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
    # As distributed checkpoints end: by syncing what was opened for reading, and directories.
    for opened in (os.open(path, os.O_RDONLY), os.open(root, os.O_RDONLY | os.O_DIRECTORY)):
        os.fsync(opened)
        os.close(opened)


def write_manifest(directory: Path, run: str, step: int) -> None:
    files = [
        {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(directory.iterdir())
    ]
    manifest = {"schema_version": 1, "kind": "checkpoint", "run_id": run, "step": step, "parent": None,
                "created_at": "2026-01-01T00:00:00Z", "files": files}
    (directory / "MANIFEST.json").write_text(json.dumps(manifest))


def pretrained(ckpt: Path) -> None:
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = LlamaForCausalLM(config).eval()
    tmp, final = ckpt / "step-000001.tmp", ckpt / "step-000001"
    model.save_pretrained(tmp)
    write_manifest(tmp, ckpt.parent.name, 1)
    tmp.rename(final)
    assert (ckpt / "LATEST").read_text() == "step-000001\n"
    ids = torch.arange(48)[None]
    with torch.no_grad():
        wanted = model(ids).logits
        for place in (final, ckpt / "latest", ckpt.parents[2] / "checkpoints" / ckpt.parent.name / "latest"):
            loaded = AutoModelForCausalLM.from_pretrained(place).eval()
            assert torch.equal(loaded(ids).logits, wanted), place
    try:
        model.save_pretrained(final)
    except OSError as error:
        assert isinstance(error, PermissionError), error
    except safetensors.SafetensorError as error:
        assert "not permitted" in str(error), error
    else:
        raise AssertionError("a sealed step was written into")


def main() -> None:
    mount = Path(sys.argv[1])
    for check in (safetensors_files, mappings, torch_files, allocation_and_syncs):
        root = mount / check.__name__
        root.mkdir()
        check(root)
        print(check.__name__)
    ckpt = mount / "runs" / "python" / "ckpt"
    ckpt.mkdir(parents=True)
    pretrained(ckpt)
    print(pretrained.__name__)


main()
