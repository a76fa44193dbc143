"""What is kept of the compiled kernels: later programs need no Numba, and nothing broken is loaded."""

import os
import subprocess
import sys
from ctypes import c_int64
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from torch import nn

from fedweave.local.compiled import kernels
from fedweave.local.compiled.network import CompiledNetwork
from fedweave.local.torch.flat_module import FlatModule
from fedweave.local.torch.samples import Samples
from fedweave.tasks import Regression

# In the place of the kernels: writes (lr, status) as the result and returns a status that the block holds.
SMALL = """
define i32 @call(ptr %found, ptr %exception, ptr %floats, ptr %integers, ptr %raw, ptr %sizes, float %lr) {
  %status = load i64, ptr %sizes
  %second = getelementptr double, ptr %found, i64 1
  %rate = fpext float %lr to double
  store double %rate, ptr %found
  %number = sitofp i64 %status to double
  store double %number, ptr %second
  %short = trunc i64 %status to i32
  ret i32 %short
}
"""


@pytest.fixture
def compilations(monkeypatch, tmp_path):
    """Compile something small, and keep it in ``tmp_path``; a list of compilations."""
    done = []

    def compiled():
        done.append(1)
        return llvm.parse_assembly(SMALL), llvm.Target.from_default_triple().create_target_machine(jit=True)

    monkeypatch.setattr(kernels, "compiled", compiled)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return done


def load_anew():
    return kernels.load.__wrapped__()


def test_code_is_compiled_once_and_kept(compilations, tmp_path):
    for _ in range(3):
        assert load_anew()((c_int64 * 1)(0), 0.25) == (0.25, 0.0, 0.0, 0.0)
    assert len(compilations) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_status_is_an_error(compilations):
    with pytest.raises(RuntimeError, match="stopped with status 3"):
        load_anew()((c_int64 * 1)(3), 0.0)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b"", lambda b: b[:20], lambda b: b[:-1], lambda b: b + b"\0", lambda b: b[:99] + b"?" + b[100:]],
)
def test_a_broken_file_is_compiled_anew_and_replaced(compilations, tmp_path, damage):
    load_anew()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert load_anew()((c_int64 * 1)(0), 0.5) == (0.5, 0.0, 0.0, 0.0)
    assert len(compilations) == 2
    assert file.read_bytes() == whole


def test_without_a_folder_every_program_compiles(compilations, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    load_anew()
    assert load_anew()((c_int64 * 1)(0), 0.5) == (0.5, 0.0, 0.0, 0.0)
    assert len(compilations) == 2


def test_the_users_folder_is_taken_where_the_sources_cannot_be_written_to(compilations, tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in kernels.SOURCES:
        (tmp_path / name).write_bytes((kernels.HERE / name).read_bytes())
    (tmp_path / "__pycache__").touch()  # not a folder
    monkeypatch.setattr(kernels, "HERE", tmp_path)
    load_anew()
    load_anew()
    assert len(compilations) == 1
    assert len(list((tmp_path / ".cache/fedweave").iterdir())) == 1


def test_other_sources_versions_and_processors_have_their_own_code(tmp_path, monkeypatch):
    keys = [kernels._key()]
    for variable in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.setenv(variable, "x86-64-v3")
        keys.append(kernels._key())
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "another")
    keys.append(kernels._key())
    for package in ("numba", "llvmlite"):
        monkeypatch.setattr(kernels, "version", lambda name, other=package: "9" if name == other else "8")
        keys.append(kernels._key())
    for name in kernels.SOURCES:
        (tmp_path / name).write_bytes((kernels.HERE / name).read_bytes())
    monkeypatch.setattr(kernels, "HERE", tmp_path)
    assert kernels._key() == keys[-1], "the folder does not matter"
    for name in kernels.SOURCES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"#")
        keys.append(kernels._key())
    assert len(set(keys)) == len(keys)


def test_code_that_needs_numba_is_not_kept(compilations, monkeypatch, tmp_path):
    compiled = kernels.compiled

    def needy():
        module, target = compiled()
        module.link_in(
            llvm.parse_assembly("declare void @numba_help()\ndefine void @b() { call void @numba_help() ret void }")
        )
        return module, target

    monkeypatch.setattr(kernels, "compiled", needy)
    monkeypatch.setattr(kernels, "Kernels", lambda code: code)  # it could not be loaded here
    assert load_anew()
    assert not list(tmp_path.iterdir())


WARM = """
import sys
from fedweave.local.compiled import kernels
from local.test_compiled import digest, odd_cnn, odd_dense
kernels.compiled = None
sys.stdout.write(f"{digest(odd_dense)} {digest(odd_cnn)} {'numba' in sys.modules}")
"""


def test_a_later_program_has_the_same_bits_without_numba():
    from local.test_compiled import digest, odd_cnn, odd_dense

    expected = f"{digest(odd_dense)} {digest(odd_cnn)} False"  # compiled at the latest here
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", WARM], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == expected, run.stderr


@pytest.mark.parametrize("wrong", [lambda y: y.astype(np.float64), lambda y: np.repeat(y, 2)[::2]])
def test_a_model_of_another_kind_is_refused_and_not_read(wrong):
    model = nn.Linear(6, 1)
    samples = Samples(np.zeros((3, 6), np.float32), np.zeros(3, np.float32), (), (), torch.device("cpu"))
    network = CompiledNetwork.of(model, FlatModule(model).layout, samples, Regression())
    with pytest.raises(TypeError, match="float32 that lie one after another"):
        network._gradient_at(wrong(np.zeros(7, np.float32)), np.arange(3))
