"""What runs beside a simulator names nothing that Windows or macOS lacks.

Neither platform is at hand: the names are those of mypy's stubs, and the tests of client and wire
run in a Python from which the names that Windows lacks are taken.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import ROOT
from support.without_posix.platform_names import find_missing

HIDING = ROOT / "tests" / "support" / "without_posix"
PLATFORMS = ("win32", "darwin")
# A branch that one of these begins, or a block that catches one of the errors, is guarded.
GUARDS = ("hasattr", "os.name", "sys.platform")
ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError")
LINUX_PATHS = ("/proc/", "/dev/", "/sys/", "/run/", "/tmp")
# `relaax` without the servers' libraries.
ENTRY = ("entry", "base", "doctor", "examples")


def list_client_files() -> list[Path]:
    """Returns the modules of client and wire, those that they import, and what starts them."""
    package = ROOT / "relaax_like"
    found = [
        *sorted((package / "client").glob("*.py")),
        *sorted((package / "wire").glob("*.py")),
        *(package / "cli" / f"{name}.py" for name in ENTRY),
        *(path for path in sorted((ROOT / "environments").rglob("*")) if is_python(path)),
    ]
    for path in found:  # grows
        found += [module for module in list_imported(path) if module not in found]
    return found


def is_python(path: Path) -> bool:
    return path.suffix == ".py" or (path.name == "main" and "python" in path.open().readline())


def list_imported(path: Path) -> Iterator[Path]:
    """Yields what a module of ours imports when it is loaded."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for name in (module, *(f"{module}.{alias.name}" for alias in names)):
                    base = ROOT / name.replace(".", "/")
                    for file in (base.with_suffix(".py"), base / "__init__.py"):
                        if name.startswith("relaax_like") and file.exists():
                            yield file


def find_named(code: str) -> list[str]:
    """Returns the names that a platform lacks, and that nothing guards: "LINE: NAME"."""
    tree = ast.parse(code)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.partition(".")[0]] = alias.name
    return [f"{line}: {name}" for line, name in _find_named(tree, modules)]


def _find_named(node: ast.AST, modules: dict[str, str]) -> Iterator[tuple[int, str]]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if is_guard(test):
            return
        case ast.Try(handlers=handlers) if any(catches(one.type) for one in handlers):
            return
        case ast.With(items=items) if any(catches(one.context_expr) for one in items):
            return
        case ast.Import(names=names):
            for alias in names:
                if "*" in missing(alias.name):
                    yield node.lineno, alias.name
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                if missing(module) & {"*", alias.name}:
                    yield node.lineno, f"{module}.{alias.name}"
        case ast.Attribute(attr=name):
            root = ast.unparse(node.value).partition(".")[0]
            if name in missing(modules.get(root, "")):
                yield node.lineno, f"{root}.{name}"
        case ast.Constant(value=str(text)) if text.startswith(LINUX_PATHS):
            yield node.lineno, text
    for child in ast.iter_child_nodes(node):
        yield from _find_named(child, modules)


def missing(module: str) -> frozenset[str]:
    return frozenset().union(*(find_missing(module, platform) for platform in PLATFORMS))


def is_guard(test: ast.expr) -> bool:
    return any(guard in ast.unparse(test) for guard in GUARDS)


def catches(expression: ast.expr | None) -> bool:
    return expression is not None and any(error in ast.unparse(expression) for error in ERRORS)


@pytest.mark.parametrize("path", list_client_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_client_names_nothing_that_windows_or_macos_lacks(path: Path) -> None:
    assert find_named(path.read_text()) == []


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("import fcntl", ["1: fcntl"]),
        ("import os, pwd", ["1: pwd"]),
        ("from resource import getrlimit", ["1: resource.getrlimit"]),
        ("def f():\n    from socket import AF_UNIX", ["2: socket.AF_UNIX"]),
        ("import signal\nsignal.signal(signal.SIGUSR1, f)", ["2: signal.SIGUSR1"]),
        ("import signal\nsignal.Signals.SIGKILL", ["2: signal.SIGKILL"]),
        ("import socket as s\ns.SO_REUSEPORT", ["2: s.SO_REUSEPORT"]),
        ("import os\nos.register_at_fork(f)", ["2: os.register_at_fork"]),
        ("import os\nos.open(p, os.O_RDONLY | os.O_NOFOLLOW)", ["2: os.O_NOFOLLOW"]),
        ("import os\nos.sched_getaffinity(0)", ["2: os.sched_getaffinity"]),
        ("import signal\nsignal.sigtimedwait", ["2: signal.sigtimedwait"]),  # nor macOS
        ("open('/proc/self/status')", ["1: /proc/self/status"]),
        ("import os, signal, socket\nsignal.SIGTERM; os.replace; socket.TCP_NODELAY", []),
        ("import signal\nif hasattr(signal, 'SIGUSR1'):\n    signal.SIGUSR1", []),
        ("import os\nn = os.getuid() if os.name == 'posix' else 0", []),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
        ("fork = os.fork = 1", []),  # of another os
    ],
)
def test_what_the_check_finds(code: str, want: list[str]) -> None:
    assert find_named(code) == want


@pytest.mark.timeout(600)  # ten seconds of work, on a machine that can be busy
def test_client_and_wire_pass_without_what_windows_lacks() -> None:
    """Its first file fails if something is not hidden."""
    paths = (HIDING / "check_hiding.py", ROOT / "tests" / "client", ROOT / "tests" / "wire")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not posix", *paths],
        env={**os.environ, "PYTHONPATH": str(HIDING)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=590,
    )
    assert done.returncode == 0, done.stdout[-5000:]
