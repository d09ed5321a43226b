#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder that runs on a machine with nothing but a C library (and, for the CUDA backend, an NVIDIA driver): the
program with its shared libraries, the small model, an oracle checkpoint with its recorded answers, check.sh.

Use: dist.py PROGRAM FOLDER              `make dist`; PROGRAM is linked to look for libraries in $ORIGIN/lib
     dist.py --device FOLDER PROGRAM...  `make device`: FOLDER/lib and FOLDER/oracle for programs that are there
"""
import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The C library's own: they come with the dynamic loader and must fit it.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libutil|libnss_.*|libanl)\.so")
ORACLE = ROOT / "tests/data/oracle/tiny-a"
PROMPTS = (5, 129)  # lengths; each has 64 greedy tokens
TOP = 16


def libraries(program):
    """Paths of the shared libraries that a program needs, the C library's left out."""
    out = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    if "not found" in out:
        sys.exit(f"dist: {program} lacks libraries:\n{out}")
    paths = re.findall(r"^\s*(\S+) => (/\S+)", out, flags=re.M)
    return {name: path for name, path in paths if not SYSTEM.match(name)}


def copy_licence(path, folder):
    """The licence of the distribution's package that a library is from, where there are such packages."""
    path = pathlib.Path(path).resolve()
    for name in (path, pathlib.Path("/", *path.parts[2:])):  # /lib may be /usr/lib
        done = subprocess.run(["dpkg-query", "-S", str(name)], capture_output=True, text=True) if shutil.which("dpkg-query") else None
        if done and done.returncode == 0:
            package = done.stdout.split(":")[0]
            licence = pathlib.Path("/usr/share/doc", package, "copyright")
            if licence.exists():
                folder.mkdir(exist_ok=True)
                shutil.copy(licence, folder / package)
            return


def tensors(path):
    """A function from a name to the values of an F32 or U32 tensor of a safetensors file, row by row."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])

    def get(name):
        t = header[name]
        begin, end = (8 + n + off for off in t["data_offsets"])
        values = struct.unpack(f"<{(end - begin) // 4}{'f' if t['dtype'] == 'F32' else 'I'}", data[begin:end])
        width = t["shape"][-1]
        return [values[i:i + width] for i in range(0, len(values), width)]
    return get


def golden(m):
    """The recorded continuation of the prompt of m tokens, as `lily eval golden` reads it."""
    greedy = tensors(ORACLE / "reference/greedy.safetensors")
    (prompt,) = tensors(ORACLE / "reference/logits.safetensors")(f"prompt.{m}")
    (ids,) = greedy(f"greedy.{m}.ids")
    steps = []
    for chosen, row in zip(ids, greedy(f"greedy.{m}.logits"), strict=True):
        total = math.log(sum(math.exp(x - max(row)) for x in row)) + max(row)
        best = sorted(range(len(row)), key=lambda i: -row[i])[:TOP]
        steps.append({"chosen": chosen, "topk": [[i, row[i] - total] for i in best]})
    return {"prompt_token_ids": list(prompt), "steps": steps}


def write_goldens(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for m in PROMPTS:
        (folder / f"golden-{m}.json").write_text(json.dumps(golden(m)) + "\n")


def copy_libraries(folder, programs):
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        for name, path in sorted(libraries(program).items()):
            shutil.copy(path, folder / name)
            copy_licence(path, folder / "licences")


def main():
    if sys.argv[1] == "--device":
        folder = pathlib.Path(sys.argv[2])
        copy_libraries(folder / "lib", sys.argv[3:])
        write_goldens(folder / "oracle")
        return
    program, folder = map(pathlib.Path, sys.argv[1:3])
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("models/mini", "oracle/tiny-a"):
        (folder / name).mkdir(parents=True)
    shutil.copy(program, folder / "lily")
    subprocess.run(["strip", "--strip-debug", str(folder / "lily")], check=True)
    copy_libraries(folder / "lib", [program])
    for path in (ROOT / "models/mini").iterdir():
        shutil.copy(path, folder / "models/mini" / path.name)
    for path in ORACLE.iterdir():
        if path.is_file():
            shutil.copy(path, folder / "oracle/tiny-a" / path.name)
    write_goldens(folder / "oracle")
    for name in ("LICENSE", "README.md", "VERSION"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "tools/dist_check.sh", folder / "check.sh")
    (folder / "check.sh").chmod(0o755)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"dist: {folder}: {size / 1e6:.1f} MB, {len(list((folder / 'lib').glob('*.so*')))} shared libraries")


if __name__ == "__main__":
    main()
