# SPDX-License-Identifier: Apache-2.0
"""The program that a script measures, or one line that says that it is missing."""
import os
import pathlib
import sys


def find_program(path, target=""):
    """The whole path of a program; ends the script with status 2 where none is. target: what `make` has to make for it."""
    whole = pathlib.Path(path).resolve()
    if not whole.is_file() or not os.access(whole, os.X_OK):
        here = pathlib.Path.cwd()
        shown = whole.relative_to(here) if whole.is_relative_to(here) else whole
        print(f"no program {shown}: build it with {' '.join(['make', target]).strip()}, or name it with --program", file=sys.stderr)
        sys.exit(2)
    return str(whole)
