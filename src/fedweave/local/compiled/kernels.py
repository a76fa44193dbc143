"""The compiled kernels as object code: Numba makes it once, and later programs load it without Numba."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import suppress
from ctypes import CFUNCTYPE, byref, c_double, c_float, c_int32, c_void_p
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

HERE = Path(__file__).parent
SOURCES = ("kernels.py", "layers.py", "table.py", "vectors.py")
C_LIBRARY = {"exp", "log", "sqrt"}  # what the kernels may call; LLVM itself adds memset and the like
FOUR = c_double * 4
# The way in which Numba's functions call each other: the places of a result and of an exception come first.
CALL = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float)
NO_DESTRUCTORS = "define void @NRT_MemInfo_call_dtor(ptr %0) { ret void }"  # all arrays are the caller's


class Kernels:
    """Object code that is ready to be called."""

    def __init__(self, code: bytes):
        target = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)  # it owns the code
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._call = CALL(self._engine.get_function_address("call"))

    def __call__(self, block: Any, lr: float) -> tuple[float, float, float, float]:
        """Do what ``layers.train`` says with the arrays of a block; return its four numbers."""
        found, exception = FOUR(), c_void_p()
        if status := self._call(found, byref(exception), block, block, block, block, lr):
            raise RuntimeError(f"The compiled kernels stopped with status {status}.")
        return found[0], found[1], found[2], found[3]


@cache
def load() -> Kernels:
    """Return the kernels of this processor, compiled if no program before has kept them."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name = f"kernels-{_key()}.o"
    code = _kept(name)
    if code is None:
        module, target = compiled()
        code = target.emit_object(module)
        if {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} <= C_LIBRARY:
            _keep(name, code)  # it needs nothing of Numba's
    return Kernels(code)


def compiled() -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Return the kernels as a module with the function ``call``, and the machine to write it for."""
    from numba import njit
    from numba.core.registry import cpu_target

    from fedweave.local.compiled import layers

    wrappers: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    (made,) = njit(layers.SIGNATURE, error_model="numpy", **wrappers)(layers.call).overloads.values()
    module = llvm.parse_assembly(made.library.get_llvm_str())
    module.link_in(llvm.parse_assembly(NO_DESTRUCTORS))
    module.get_function(made.fndesc.llvm_func_name).name = "call"
    context: Any = cpu_target.target_context
    triple, processor, features = context.codegen().magic_tuple()
    return module, llvm.Target.from_triple(triple).create_target_machine(processor, features, opt=3, jit=True)


def _key() -> str:
    """Return what code depends on, as a word: sources, versions, and the processor or the one that is imitated."""
    imitated = (os.environ.get(f"NUMBA_CPU_{what}") for what in ("NAME", "FEATURES"))
    processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), *imitated
    facts = repr((sys.version, version("numba"), version("llvmlite"), *processor)).encode()
    return sha256(b"".join([*((HERE / name).read_bytes() for name in SOURCES), facts])).hexdigest()[:32]


def _folders() -> Generator[Path]:
    """Yield where code may be kept: in Numba's folder if one is named, else beside the sources or at the user's."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given)
    else:
        yield HERE / "__pycache__"
        yield Path.home() / ".cache/fedweave"


def _kept(name: str) -> bytes | None:
    """Return the code in the first intact file of this name: a digest, then the code."""
    with suppress(RuntimeError):  # there is no home
        for folder in _folders():
            with suppress(OSError):
                found = (folder / name).read_bytes()
                if sha256(found[32:]).digest() == found[:32]:
                    return found[32:]
    return None


def _keep(name: str, code: bytes) -> None:
    """Write the code to the first folder that can be written to, if there is one."""
    with suppress(RuntimeError):
        for folder in _folders():
            part = folder / f"{name}.{os.getpid()}"
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    part.write_bytes(sha256(code).digest() + code)
                    part.replace(folder / name)
                finally:
                    part.unlink(missing_ok=True)
                return
