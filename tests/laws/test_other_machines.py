"""The laws on machines that this one is not: more threads, no vectors, AVX2 instead of AVX-512 (torch and kernel).

Each is an environment of its own, so a short part of the laws runs again in a fresh process. What one kind of processor
rounds differently then shows on all of them. It is FedCG that found the need: its states come from a solver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.kernel import library

ROOT = Path(__file__).resolve().parents[2]
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
MACHINES: dict[str, dict[str, str]] = {
    "four-threads, no-vectors": {
        **{"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "ATEN_CPU_CAPABILITY": "default"}
    },
    "avx2": {**AVX2, "OMP_NUM_THREADS": "2", library.VARIABLE: "v3"},
}
BESIDE = {"four-threads, no-vectors": "panm", "avx2": "md-icfl"}
"""The method that is tried on a machine beside FedCG."""


def laws(other: str) -> list[str]:
    """What must hold, as tests by name: all of it for FedCG, and what the kernel computes for another method."""
    engine, resumed = "tests/laws/test_engine_laws.py", "tests/laws/test_resume_laws.py"
    return [
        *(f"{engine}::test_lanes_and_threads_change_nothing_in_the_kernel[{name}]" for name in ("fedcg", other)),
        f"{engine}::test_lanes_and_processes_change_nothing_in_torch[fedcg]",
        *(f"{resumed}::test_resumed_is_never_interrupted[{name}-storm]" for name in ("fedcg", other)),
        "tests/deploy/test_remote.py::test_real_clients_end_as_simulated_ones[fedcg]",
        "tests/laws/test_layout_laws.py::test_states_messages_and_memories_lie_as_their_encoding_gives_them[fedcg]",
        "tests/laws/test_thread_laws.py::test_client_work_has_one_thread_on_every_engine",
        "tests/laws/test_other_machines.py::test_this_is_the_machine_that_was_asked_for",
    ]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_laws_hold_on_another_machine(machine: str) -> None:
    settings = MACHINES[machine]
    found = library.installed()
    if library.VARIABLE in settings and (isinstance(found, str) or found.file.stem not in ("_kernel_v3", "_kernel_v4")):
        pytest.skip("there is no AVX2 build of the kernel here")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OMP_", "MKL_"))}
    tests = laws(BESIDE[machine])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", *tests],
        env={**plain, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{len(tests)} passed" in done.stdout


def test_this_is_the_machine_that_was_asked_for() -> None:
    """Run in the environments above, this says that their settings reach torch and the kernel."""
    wanted = os.environ.get("ATEN_CPU_CAPABILITY")
    if wanted is not None:
        assert torch.backends.cpu.get_cpu_capability() == wanted.upper()
    build, found = os.environ.get(library.VARIABLE), library.installed()
    assert build is None or (isinstance(found, library.Library) and found.file.stem == f"_kernel_{build}")


def test_a_build_that_the_processor_cannot_run_is_refused() -> None:
    if isinstance(library.installed(), str):
        pytest.skip("there is no kernel here")
    with pytest.raises(CoterieError, match="COTERIE_KERNEL is 'v9', which this processor cannot run; choose"):
        library.load(wanted="v9")
