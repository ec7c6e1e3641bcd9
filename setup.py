"""Packaging: `algorithms/` and `environments/` lie beside the package and are shipped inside it."""

import re
from pathlib import Path

from setuptools import find_packages, setup

INIT = Path(__file__).with_name("relaax_like") / "__init__.py"
VERSION = re.search(r'__version__ = "(.+?)"', INIT.read_text()).group(1)
SHIPPED = ("algorithms", "environments")

setup(
    version=VERSION,
    packages=[
        *find_packages(include=["relaax_like", "relaax_like.*"]),
        *(
            f"relaax_like.{package}"
            for root in SHIPPED
            for package in [root, *(f"{root}.{name}" for name in find_packages(root))]
        ),
    ],
    package_dir={f"relaax_like.{root}": root for root in SHIPPED},
    package_data={
        "relaax_like": ["py.typed", "**/*.pyi", "client_checks/*.txt"],
        "relaax_like.algorithms": ["*/*.yaml", "*/*.md", "*/*.Procfile"],
        "relaax_like.environments": ["*.md", "*/*", "templates/*/*"],
    },
)
