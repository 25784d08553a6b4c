"""Make the long description of README.md: on an index page its relative links need an address.

Everything else of the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RELEASE = f"{PROJECT['urls']['Source']}/{{}}/v{PROJECT['version']}/"


def long_description() -> str:
    """Return README.md with the addresses of its links and images as they are in this release."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{RELEASE.format('raw')}", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{RELEASE.format('blob')}", text)


setup(long_description=long_description(), long_description_content_type="text/markdown")
