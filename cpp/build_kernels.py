"""Builds the CUDA extension `worker._kernels` with nvcc and ninja. Knows no setuptools and no torch.

    python cpp/build_kernels.py                  build worker/_kernels.*.so in place; without nvcc say so and succeed
    python cpp/build_kernels.py --output FILE    build it elsewhere

Compiling needs no GPU. A file is compiled for TERCET_CUDA_ARCHS (default: 80 90), and as PTX for what comes after the
last of them; `*_sm90a.cu`, for what only Hopper has, is compiled for sm_90a alone and may only be called there. nvcc is
the one that CUDACXX names, else that of CUDA_HOME, else that of the path, else that of /usr/local/cuda.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from build import (
    IN_PLACE,
    ROOT,
    BuildError,
    check_loads,
    escape,
    escape_path,
    extension_includes,
    install,
    locked,
    run_ninja,
)

KERNELS_IN_PLACE = IN_PLACE.with_name(IN_PLACE.name.replace("_core", "_kernels", 1))
OLDEST_CUDA = (12, 0)
ARCHS = "80 90"
HOST_FLAGS = ["-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
# Nothing here is called from another file's kernels, and a kernel that does not fit its launch bounds is a bug.
COMPILE_FLAGS = ["-std=c++17", "-O3", "-lineinfo", "--expt-relaxed-constexpr", *(f"-Xcompiler={f}" for f in HOST_FLAGS)]
# The runtime is linked in: whichever one torch brings along, ours is that of the compiler.
LINK_FLAGS = ["-shared", "-cudart=static", "-Xcompiler=-pthread"]
SUFFIX_SM90A = "_sm90a"


def find_nvcc() -> list[str] | None:
    """The command that is nvcc, or None if there is none. Raises BuildError if it is too old or does not run."""
    named = os.environ.get("CUDACXX")
    if named:
        command = shlex.split(named)
        if not shutil.which(command[0]):
            raise BuildError(f"CUDACXX names {command[0]!r}, which is not there")
    else:
        folders = [os.path.join(home, "bin") for home in (os.environ.get("CUDA_HOME"),) if home]
        places = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
        found = shutil.which("nvcc", path=places)
        if found is None:
            return None
        command = [found]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    release = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if done.returncode or release is None:
        raise BuildError(f"{shlex.join(command)} --version says nothing of use: {done.stdout}{done.stderr}")
    version = (int(release[1]), int(release[2]))
    if version < OLDEST_CUDA:
        wanted = ".".join(map(str, OLDEST_CUDA))
        raise BuildError(f"{shlex.join(command)} is of CUDA {release[1]}.{release[2]}; {wanted} or newer is needed")
    return command


def kernel_sources() -> list[Path]:
    """Everything that is linked into `worker._kernels`."""
    patterns = ("cpp/cuda/*.cu", "cpp/cuda/*.cpp", "cpp/bind/cuda_*.cpp")
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def arch_flags(source: Path, archs: list[str]) -> list[str]:
    """What `source` is compiled for; nothing for a file without device code."""
    if source.suffix != ".cu":
        return []
    if source.stem.endswith(SUFFIX_SM90A):
        return ["-gencode=arch=compute_90a,code=sm_90a"]
    last = archs[-1]
    targets = [*(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs)]
    return [*targets, f"-gencode=arch=compute_{last},code=compute_{last}"]


def write_kernels_ninja(folder: Path, nvcc: list[str], sources: list[Path], archs: list[str]) -> None:
    """Writes folder/build.ninja that makes folder/_kernels.so of `sources`."""
    host = ["-ccbin", shlex.split(os.environ["CXX"])[0]] if os.environ.get("CXX") else []
    compiler = escape(shlex.join([*nvcc, *host]))
    flags = escape(shlex.join([*COMPILE_FLAGS, f"-I{ROOT / 'cpp/cuda'}", *extension_includes()]))
    lines = [
        "ninja_required_version = 1.8",
        "rule compile",
        f"  command = {compiler} {flags} $archs -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $name",
        "rule link",
        f"  command = {compiler} {shlex.join(LINK_FLAGS)} $in -o $out",
        "  description = link $out",
    ]
    objects = []
    for source in sources:
        name = source.relative_to(ROOT)
        objects.append(escape_path(f"{name.with_suffix('.o')}"))
        lines += [
            f"build {objects[-1]}: compile {escape_path(str(source))}",
            f"  name = {name}",
            f"  archs = {shlex.join(arch_flags(source, archs))}",
        ]
    lines += [f"build _kernels.so: link {' '.join(objects)}", "default _kernels.so", ""]
    text = "\n".join(lines)
    file = folder / "build.ninja"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def build_kernels(nvcc: list[str], output: Path) -> None:
    """Builds `worker._kernels` and puts it at `output`. Raises BuildError."""
    archs = os.environ.get("TERCET_CUDA_ARCHS", ARCHS).replace(",", " ").split()
    if not archs or not all(re.fullmatch(r"\d+[af]?", arch) for arch in archs):
        raise BuildError(f"TERCET_CUDA_ARCHS must be numbers such as {ARCHS!r}, is {' '.join(archs)!r}")
    folder = ROOT / "build" / "kernels"
    with locked(folder):
        write_kernels_ninja(folder, nvcc, kernel_sources(), archs)
        run_ninja(folder)
        check_loads(folder / "_kernels.so")
        install(folder / "_kernels.so", output)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build worker._kernels.")
    parser.add_argument("--output", type=Path, default=KERNELS_IN_PLACE, help="where the extension goes")
    arguments = parser.parse_args()
    try:
        nvcc = find_nvcc()
        if nvcc is None:
            sys.stdout.write("nvcc is not there: worker._kernels is left out, GPUs are served by PyTorch alone\n")
            return 0
        build_kernels(nvcc, arguments.output)
    except BuildError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
