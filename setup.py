"""The build steps that pyproject.toml cannot express: protobuf stubs, the C++ extension and the CUDA one."""

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildStubs(build_py):
    """Generates `*_pb2*` from proto/ into the packages of the same path, for wheels and for editable installs."""

    def run(self) -> None:
        protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("proto/**/*.proto"))
        outputs = [f"--{kind}_out=." for kind in ("python", "pyi", "grpc_python")]
        print(f"protoc: {len(protos)} files", flush=True)
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *outputs, *protos], cwd=ROOT, check=True
        )
        super().run()


class BuildNative(build_ext):
    """Builds `worker._core` and `worker._kernels` with the scripts of cpp/."""

    def build_extension(self, ext: Extension) -> None:
        script = ROOT / "cpp" / {"worker._core": "build.py", "worker._kernels": "build_kernels.py"}[ext.name]
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        if subprocess.run([sys.executable, str(script), "--output", str(output)]).returncode:
            sys.exit(1)


def sources(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


setup(
    ext_modules=[
        Extension("worker._core", sources=sources("cpp/src/*.cpp", "cpp/bind/*.cpp")),
        # Optional: without nvcc there is none. Where there is one, what it refuses is still an error.
        Extension("worker._kernels", sources=sources("cpp/cuda/*.c*", "cpp/bind/cuda_*.cpp"), optional=True),
    ],
    cmdclass={"build_py": BuildStubs, "build_ext": BuildNative},
)
