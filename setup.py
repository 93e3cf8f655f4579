"""The build steps that pyproject.toml cannot express: protobuf stubs and the C++ extension."""

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


class BuildCore(build_ext):
    """Builds `worker._core` with cpp/build.py."""

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        if subprocess.run([sys.executable, str(ROOT / "cpp" / "build.py"), "--output", str(output)]).returncode:
            sys.exit(1)


setup(
    ext_modules=[
        Extension("worker._core", sources=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("cpp/*/*.cpp")))
    ],
    cmdclass={"build_py": BuildStubs, "build_ext": BuildCore},
)
