#!/usr/bin/env bash
# Makes .venv, the Python that the reader tests run: Debian's torch, and the Hugging Face libraries from PyPI. A
# complete one is left as it is.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

venv=$repo_root/.venv
# Torch 1.13 was built against numpy 1.
wanted=("transformers==4.40.2" "safetensors==0.8.0" "numpy<2")

complete() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" - <<'END' 2>/dev/null
import numpy, safetensors.torch, torch, transformers
assert transformers.__version__ == "4.40.2" and safetensors.__version__ == "0.8.0"
assert numpy.__version__.startswith("1.")
END
}

if complete; then exit 0; fi
need_packages python3-torch python3-venv python3-pip
echo "making $venv"
# By its path: another python3 that comes first in PATH does not see Debian's torch.
/usr/bin/python3 -m venv --clear --system-site-packages "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "${wanted[@]}" || fail "pip could not install ${wanted[*]}"
complete || fail "$venv is made, but does not import torch and transformers: $("$venv/bin/python" -c 'import torch, safetensors.torch, transformers' 2>&1 | tail -n 1)"
