"""Build of the optional C++ libraries; everything else about the package is in pyproject.toml.

Each of three sources becomes one plain shared library per instruction set. `soma.forward.cpu`, `soma.forward.members`
and `soma.inference.compiled` load the best one that the machine supports, so that one virtual environment on a shared
disk serves a cluster with different processors. Without a C++ compiler the installation succeeds and the `torch` engine
is used.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, "src")
from soma.forward.native import SOURCES, sources_hash

# Holds the hash of the other sources, so that a library that is older than they are is noticed.
HASH = "src/soma/forward/csrc/sources.cpp"
HEADERS = "src/soma/forward/csrc/*.h"
# The flags have their own file because results depend on them. Contraction is off, so only the products and sums that
# the source names are fused, and no other flag reorders arithmetic.
FLAGS = Path("src/soma/forward/csrc/flags.json")


def extensions() -> list[Extension]:
    flags = json.loads(FLAGS.read_text(encoding="utf-8"))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [
        Extension(
            f"{library}_{name}",
            sources=[f"src/soma/{source}", HASH],
            define_macros=[("SOMA_SOURCES", f'"{sources_hash(library)}"')],
            depends=[*glob(HEADERS), str(FLAGS)],
            language="c++",
            extra_compile_args=flags["all"] + flags[name],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for library, source in SOURCES.items()
        for name in (("avx512", "avx2") if x86 else ()) + ("plain",)
    ]


class BuildOptional(build_ext):
    """Build the libraries that the compiler supports, and report the others in one line."""

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
        """Build an extension and return the error, whatever its type, so that the installation continues."""
        own = copy(self)
        own.build_temp = f"{self.build_temp}/{extension.name}"  # the object file has the same name for all flags
        own.force = self.force or not _is_current(extension, Path(self.get_ext_fullpath(extension.name)))
        try:
            own.build_extension(extension)
        except Exception as error:
            return error
        return None


def _is_current(extension: Extension, path: Path) -> bool:
    """Return True if a library was built from these sources, whatever the times of the files say."""
    [(_, quoted)] = extension.define_macros
    return path.is_file() and quoted.strip('"').encode() in path.read_bytes()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOptional})
