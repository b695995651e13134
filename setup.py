"""The optional C++ extension; everything else about the package is in pyproject.toml.

Each of two sources becomes one plain shared library per instruction set, and `soma.forward.cpu` and
`soma.inference.compiled` load the best that the machine they run on supports: a virtual environment on a cluster's
shared disk serves mixed nodes. Without a C++ compiler the install succeeds and the `torch` engine does the work.
"""

from __future__ import annotations

import json
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = {"soma.forward": "src/soma/forward/csrc/engine.cpp", "soma.inference": "src/soma/inference/csrc/infer.cpp"}
HEADERS = "src/soma/forward/csrc/*.h"
# A file of its own, since results depend on it: without contraction, no product and sum are fused but those that the
# source names, and nothing else that reorders arithmetic is on either.
FLAGS = Path("src/soma/forward/csrc/flags.json")


def extensions() -> list[Extension]:
    flags = json.loads(FLAGS.read_text(encoding="utf-8"))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [
        Extension(
            f"{package}._cpu_{name}",
            sources=[source],
            depends=[*glob(HEADERS), str(FLAGS)],
            language="c++",
            extra_compile_args=flags["all"] + flags[name],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for package, source in SOURCES.items()
        for name in (("avx512", "avx2") if x86 else ()) + ("plain",)
    ]


class BuildOptional(build_ext):
    """Builds what the compiler can, and says in one line what is missing."""

    def build_extensions(self) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = list(pool.map(self._error, self.extensions))
        failed = {e.name: str(error) for e, error in zip(self.extensions, errors, strict=True) if error}
        if failed:
            left = "with what was built" if len(failed) < len(self.extensions) else "by the `torch` engine"
            first = next(iter(failed.values()))
            print(
                f"soma: CPU engine not built for {', '.join(failed)} ({first}); perturbed losses are computed {left}."
            )

    def _error(self, extension: Extension) -> Exception | None:
        """Whatever the compiler's wrapper raises: the install goes on."""
        own = copy(self)
        own.build_temp = f"{self.build_temp}/{extension.name}"  # the same object file, by other flags
        try:
            own.build_extension(extension)
        except Exception as error:
            return error
        return None


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOptional})
