"""The build hook: compile the C++ kernel where there is a compiler. Everything else is in pyproject.toml."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_KERNEL = Path(__file__).resolve().parent / "src" / "coterie" / "kernel"


class BuildWithKernel(build_py):
    """`build_py` that compiles the kernel too: beside the sources for an editable install, else in the build folder."""

    def run(self) -> None:
        """Build the package, then the kernel; a failure of the kernel is a notice."""
        super().run()
        target = _KERNEL if self.editable_mode else Path(self.build_lib) / "coterie" / "kernel"
        # Loaded by path: importing the package would need torch, which an isolated build does not have.
        spec = spec_from_file_location("coterie_kernel_build", _KERNEL / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build_or_explain(target)


class BinaryDistribution(Distribution):
    """A wheel with machine code is for one platform only."""

    def has_ext_modules(self) -> bool:
        """Say so to setuptools."""
        return True


class WheelForEveryPython(bdist_wheel):
    """The kernel is reached by ctypes: a wheel is for one platform, but for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """The platform as setuptools finds it; the interpreter does not matter."""
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithKernel, "bdist_wheel": WheelForEveryPython}, distclass=BinaryDistribution)
