"""What pyproject.toml cannot say: a wheel carries the workshop's folders, for `ep-lib lab` in an empty folder."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("notebooks", "exercises", "solutions", "tutorial_kernels", "docs")
FILES = (  # of other folders, that these read
    "benchmarks/results/dispatch-profile-h200x2.json",
    "benchmarks/results/h200x4.json",
    "tests/kernels/nixl_guide.cu",
)


class BuildWithWorkshop(build_py):
    """Puts the folders into the package as ep_lib/_workshop (ep_lib/workshop/exercises.py unpacks them)."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "ep_lib" / "_workshop"
        shutil.rmtree(target, ignore_errors=True)
        for name in FOLDERS:
            left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(Path(__file__).resolve().parent / name, target / name, ignore=left_out)
        for name in FILES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(__file__).resolve().parent / name, target / name)


setup(cmdclass={"build_py": BuildWithWorkshop})
