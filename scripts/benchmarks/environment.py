"""The private virtual environment of the peers and the plot, and what is said about the machine."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv-bench"
PEERS = ("uvloop", "picows", "cloudtoid-interprocess")
TOOLS = ("matplotlib",)


class SetupError(Exception):
    """The environment cannot be made; the text says what to do."""


def peers_python() -> Path:
    """The interpreter that runs the peers: same version as ours, made on first use."""
    python = VENV / "bin" / "python"
    marker = VENV / "ready"
    wanted = f"{sys.version}\n{PEERS + TOOLS}"
    if marker.is_file() and marker.read_text() == wanted:
        return python
    print(f"installing the peers ({', '.join(PEERS)}) into {VENV.relative_to(ROOT)} …", file=sys.stderr, flush=True)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for command in ((sys.executable, "-m", "venv", "--clear", VENV), (*pip, *PEERS, *TOOLS)):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = (done.stderr or done.stdout).strip()[-400:]
            raise SetupError(f"cannot set up {VENV.name}: {tail}\nIs the package index reachable?")
    marker.write_text(wanted)
    return python


def describe_machine() -> dict[str, str]:
    """What figures depend on."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cpus": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "build": platform.python_compiler(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def describe_versions(python: Path | None) -> dict[str, str]:
    """Versions of ours and of the peers. Args: python: the peers' interpreter, None when there are none."""
    found = {"shardpool": importlib.metadata.version("shardpool"), "commit": _commit()}
    if python is not None:
        code = f"import importlib.metadata as m; print(*(p + '=' + m.version(p) for p in {PEERS!r}))"
        text = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
        found.update(dict(pair.split("=", 1) for pair in text.split()))
    return found


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
