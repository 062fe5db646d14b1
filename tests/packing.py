"""Prints, as JSON, which files setuptools would put into the sdist and, besides compiled modules, into the wheel.

    cd TREE && python packing.py FOLDER

Nothing is compiled, and nothing is written but setuptools' notes, below FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from setuptools import Distribution


def lists(notes: str) -> dict[str, list[str]]:
    """Files of the sdist, and of the wheel as its build_py would lay them out; compiled modules are in neither."""
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    egg_info = distribution.get_command_obj("egg_info")
    egg_info.egg_base = notes
    egg_info.ensure_finalized()
    Path(egg_info.egg_info).mkdir()
    egg_info.find_sources()
    python = distribution.get_command_obj("build_py")
    python.build_lib = "wheel"
    python.ensure_finalized()
    outputs = python.get_outputs(include_bytecode=False)
    return {
        "sdist": sorted(Path(name).as_posix() for name in egg_info.filelist.files),
        "wheel": sorted(Path(name).relative_to("wheel").as_posix() for name in outputs),
    }


if __name__ == "__main__":
    print(json.dumps(lists(sys.argv[1])))
