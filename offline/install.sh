#!/usr/bin/env bash
# Installs the bundle that it lies in, without a network: tercet-offline/install.sh [FOLDER]
#
# FOLDER (default: tercet-offline/venv) becomes a virtual environment of $PYTHON (default: python3) with Tercet in it,
# its extensions built here. PyTorch is the one that $PYTHON has, or that of the bundle. Safe to run again.
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(realpath -m -- "${1:-$bundle/venv}")
python=${PYTHON:-python3}

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

say "[1/5] checking what is here"
found=$(type -P "$python") || fail "$python is not there; set PYTHON"
# Paths are as seen from where this was called. A link is kept: it may be what makes a virtual environment of it.
python=$(cd "$(dirname "$found")" && pwd)/$(basename "$found")
cd "$bundle"
sha256sum --quiet --check SHA256SUMS || fail "the bundle is damaged; carry it over again"
"$python" -c 'import venv, ensurepip' 2> /dev/null || fail "$python has no venv module (Debian: python3-venv)"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' ||
  fail "Python's headers are not there, and the extension needs them (Debian: python3-dev)"
command -v "${CXX:-c++}" > /dev/null || command -v g++ > /dev/null || fail "a C++17 compiler is needed"
torch_folder=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2> /dev/null || true)
if [ -n "$torch_folder" ]; then
  say "      PyTorch of $torch_folder"
elif compgen -G "wheels/torch-*.whl" > /dev/null; then
  say "      PyTorch of the bundle"
else
  fail "$python has no PyTorch and the bundle neither; make it with offline/bundle.py --with-torch, or set PYTHON"
fi

say "[2/5] creating $venv"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-index --find-links wheels)
if [ -n "$torch_folder" ]; then
  # Behind the environment's own packages, so that only what is not in the bundle comes from there.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  printf '%s\n' "$torch_folder" > "$site/pytorch-of-the-machine.pth"
fi

say "[3/5] installing the wheels"
shopt -s nullglob
others=()
for wheel in wheels/*.whl; do
  case $wheel in wheels/torch-*) ;; *) others+=("$wheel") ;; esac
done
"${pip[@]}" --no-deps "${others[@]}"
if [ -z "$torch_folder" ]; then "${pip[@]}" torch; fi

say "[4/5] building Tercet; the CUDA extension takes a few minutes where nvcc is"
"${pip[@]}" --no-build-isolation --no-deps ./source

say "[5/5] looking at what was built"
cd /
"$venv/bin/python" - <<'PY'
import torch
import worker._core as core
from worker.ops.dtypes import KERNELS_BUILT, KERNELS_PROBLEM

gpus = torch.cuda.device_count()
print(f"      torch {torch.__version__}, CPU kernels for {core.isa()}, GPUs: {gpus}, "
      f"CUDA extension: {'built' if KERNELS_BUILT else KERNELS_PROBLEM or 'none, for want of nvcc'}")
PY
say "done: $venv/bin/tercet --help"
