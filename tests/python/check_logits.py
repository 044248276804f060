"""Compares the trainer's logits of a step directory with those of Hugging Face transformers.

Usage: check_logits.py TINYLLM_TRAIN STEP_DIR [TOKENS]

Needs torch, transformers and safetensors. Exits with 1 when any logit differs by more than 1e-4.
"""

import json
import subprocess
import sys

import safetensors
import torch
from transformers import AutoModelForCausalLM

LIMIT = 1e-4
DEFAULT_TOKENS = "73,110,32,116,104,101,32,98,101,103,105,110,110,105,110,103"


def trainer_logits(binary: str, step_dir: str, tokens: str) -> torch.Tensor:
    command = [binary, "logits", step_dir, "--tokens", tokens]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return torch.tensor(json.loads(output)["logits"])


def transformers_logits(step_dir: str, tokens: str) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(step_dir)
    ids = torch.tensor([[int(token) for token in tokens.split(",")]])
    with torch.no_grad():
        return model(ids).logits[0]


def main() -> int:
    binary, step_dir = sys.argv[1], sys.argv[2]
    tokens = sys.argv[3] if len(sys.argv) > 3 else DEFAULT_TOKENS
    with safetensors.safe_open(f"{step_dir}/model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
    ours, theirs = trainer_logits(binary, step_dir, tokens), transformers_logits(step_dir, tokens)
    if ours.shape != theirs.shape:
        print(f"shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}")
        return 1
    largest = (ours - theirs).abs().max().item()
    print(f"{len(names)} tensors, {ours.shape[0]} positions, largest difference {largest:.2e}, limit {LIMIT:.0e}")
    return 0 if largest <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
