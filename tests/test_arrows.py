"""Who may import whom (docs/architecture.md): the services meet over gRPC alone, and only the worker sees tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVICES = {"gateway", "scheduler", "worker"}
PACKAGES = ["gateway", "scheduler", "tercet", "worker"]


def imports_of(source: str) -> set[str]:
    """Top-level packages that a module imports absolutely, anywhere in it, dynamic imports of literals included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value.partition(".")[0])
    return found


def modules(package: str) -> list[Path]:
    return sorted(
        path for path in (ROOT / package).rglob("*.py") if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    )


def test_the_reader_of_imports_reads_all_kinds():
    source = (
        "import a.b\nfrom c.d import e\nfrom . import f\ndef g():\n    import h\n    importlib.import_module('i.j')\n"
    )
    assert imports_of(source) == {"a", "c", "h", "i"}


@pytest.mark.parametrize("package", PACKAGES)
def test_services_do_not_import_each_other_and_only_the_worker_imports_torch(package):
    files = modules(package)
    assert files
    forbidden = SERVICES - {package}
    if package != "worker":
        forbidden |= {"torch", "transformers"}
    for file in files:
        wrong = imports_of(file.read_text(encoding="utf-8")) & forbidden
        assert not wrong, f"{file.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("package", sorted(SERVICES))
def test_a_service_names_itself_by_relative_imports(package):
    for file in modules(package):
        assert package not in imports_of(file.read_text(encoding="utf-8")), file.relative_to(ROOT)


def test_the_scheduler_knows_no_text_and_the_gateway_no_tensors():
    text = {"tokenizers", "jinja2", "numpy", "safetensors", "gguf"}
    for file in modules("scheduler"):
        assert not imports_of(file.read_text(encoding="utf-8")) & text, file.relative_to(ROOT)
    for file in modules("gateway"):
        assert not imports_of(file.read_text(encoding="utf-8")) & {"safetensors"}, file.relative_to(ROOT)


def test_proto_is_no_package():
    """``import proto`` is another library."""
    assert not list((ROOT / "proto").rglob("__init__.py"))


def test_no_torch_header_below_cpp():
    for file in [*(ROOT / "cpp").rglob("*.h"), *(ROOT / "cpp").rglob("*.cpp")]:
        text = file.read_text(encoding="utf-8")
        assert "#include <torch" not in text, file.relative_to(ROOT)
        assert "#include <ATen" not in text, file.relative_to(ROOT)
