"""Kernels as built-in functions of Python.

TVM's calls from Python are made for whatever arguments: each is asked what it is, and a tensor is
looked at from its dtype to its stream. Of a kernel it is known which arguments are tensors, and
what it reads of them. So a few lines of machine code take the arguments as Python hands them over,
ask torch where the tensors lie, and call the kernel. A GPU's is launched on torch's current stream.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import tvm_ffi

from babytriton.plan import Kind
from babytriton.runtime.llvm_code import address, library, loaded

_CPU = 1
"""DLPack's type of that device."""

_KINDS_OF_TVM = {"of_integer": 1, "of_float": 3, "of_tensor": 7}

# Python's interface for built-in functions with arguments by position: of the object that they are
# methods of, an array of arguments, and their number. The object is a tuple here, and its first
# item bytes: the kernel's handle, how many arguments it takes, and a kind for each. TVM's kernels
# take a {kind, padding, value} for each. Of torch's tensors, DLPack's table of functions gives a
# view, and of a tensor's GPU the current stream: tvm-ffi keeps the one to launch on.
_CODE = """
%value = type {{ i32, i32, i64 }}
%tensor = type {{ ptr, i32, i32, i32, i32, ptr, ptr, i64 }}

define ptr @call(ptr %self, ptr %arguments, i64 %count) {{
  %bytes = call ptr inttoptr (i64 {tuple_item} to ptr)(ptr %self, i64 0)
  %known = call ptr inttoptr (i64 {bytes_content} to ptr)(ptr %bytes)
  %kernel = load ptr, ptr %known
  %kinds = getelementptr i8, ptr %known, i64 16
  %expected_place = getelementptr i8, ptr %known, i64 8
  %expected = load i64, ptr %expected_place
  %is_expected = icmp eq i64 %count, %expected
  br i1 %is_expected, label %begin, label %miscounted
miscounted:
  %ignored = call i32 inttoptr (i64 {bad_argument} to ptr)()
  ret ptr null
begin:
  %values = alloca %value, i64 %count
  %tensors = alloca %tensor, i64 %count
  %result = alloca %value
  %current = alloca ptr
  %earlier = alloca ptr
  %seen = alloca ptr
  store ptr null, ptr %seen
  store %value zeroinitializer, ptr %result
  br label %next
next:
  %n = phi i64 [ 0, %begin ], [ %following, %stored ]
  %is_argument = icmp ult i64 %n, %count
  br i1 %is_argument, label %argument, label %launch
argument:
  %place = getelementptr ptr, ptr %arguments, i64 %n
  %object = load ptr, ptr %place
  %kind_place = getelementptr i8, ptr %kinds, i64 %n
  %kind = load i8, ptr %kind_place
  switch i8 %kind, label %tensor [ i8 {float}, label %float  i8 {integer}, label %integer ]
tensor:
  %view = getelementptr %tensor, ptr %tensors, i64 %n
  %refused = call i32 inttoptr (i64 {view} to ptr)(ptr %object, ptr %view)
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %failed, label %viewed
viewed:
  store ptr %view, ptr %seen
  %as_tensor = ptrtoint ptr %view to i64
  %start_place = getelementptr %tensor, ptr %view, i32 0, i32 0
  %start = load i64, ptr %start_place
  %offset_place = getelementptr %tensor, ptr %view, i32 0, i32 7
  %offset = load i64, ptr %offset_place
  %address = add i64 %start, %offset
  %is_address = icmp eq i8 %kind, {address}
  %where = select i1 %is_address, i64 %address, i64 %as_tensor
  %tensor_kind = select i1 %is_address, i32 {of_integer}, i32 {of_tensor}
  br label %stored
float:
  %float_value = call double inttoptr (i64 {as_double} to ptr)(ptr %object)
  %bits = bitcast double %float_value to i64
  br label %number
integer:
  %integer_value = call i64 inttoptr (i64 {as_integer} to ptr)(ptr %object)
  br label %number
number:
  %number_kind = phi i32 [ {of_float}, %float ], [ {of_integer}, %integer ]
  %number_content = phi i64 [ %bits, %float ], [ %integer_value, %integer ]
  %problem = call ptr inttoptr (i64 {problem} to ptr)()
  %is_number = icmp eq ptr %problem, null
  br i1 %is_number, label %stored, label %failed
stored:
  %value_kind = phi i32 [ %tensor_kind, %viewed ], [ %number_kind, %number ]
  %content = phi i64 [ %where, %viewed ], [ %number_content, %number ]
  %value = getelementptr %value, ptr %values, i64 %n
  store i32 %value_kind, ptr %value
  %padding = getelementptr %value, ptr %value, i32 0, i32 1
  store i32 0, ptr %padding
  %content_place = getelementptr %value, ptr %value, i32 0, i32 2
  store i64 %content, ptr %content_place
  %following = add i64 %n, 1
  br label %next
launch:
  %number_of_arguments = trunc i64 %count to i32
  %last = load ptr, ptr %seen
  %is_of_numbers = icmp eq ptr %last, null
  br i1 %is_of_numbers, label %run, label %placed
placed:
  %type_place = getelementptr %tensor, ptr %last, i32 0, i32 1
  %type = load i32, ptr %type_place
  %device_place = getelementptr %tensor, ptr %last, i32 0, i32 2
  %device = load i32, ptr %device_place
  %has_stream = icmp ne i32 %type, {cpu}
  br i1 %has_stream, label %stream, label %run
stream:
  %unknown = call i32 inttoptr (i64 {stream} to ptr)(i32 %type, i32 %device, ptr %current)
  %is_unknown = icmp ne i32 %unknown, 0
  br i1 %is_unknown, label %failed, label %known_stream
known_stream:
  %own = load ptr, ptr %current
  %set = call i32 inttoptr (i64 {set_stream} to ptr)(
    i32 %type, i32 %device, ptr %own, ptr %earlier)
  %is_unset = icmp ne i32 %set, 0
  br i1 %is_unset, label %error, label %run
run:
  %is_set = phi i1 [ false, %launch ], [ false, %placed ], [ true, %known_stream ]
  %own_type = phi i32 [ 0, %launch ], [ %type, %placed ], [ %type, %known_stream ]
  %own_device = phi i32 [ 0, %launch ], [ %device, %placed ], [ %device, %known_stream ]
  %thread = call ptr inttoptr (i64 {let_others_run} to ptr)()
  %code = call i32 inttoptr (i64 {call} to ptr)(
    ptr %kernel, ptr %values, i32 %number_of_arguments, ptr %result)
  call void inttoptr (i64 {run_again} to ptr)(ptr %thread)
  br i1 %is_set, label %reset, label %ran
reset:
  %others = load ptr, ptr %earlier
  %reset_code = call i32 inttoptr (i64 {set_stream} to ptr)(
    i32 %own_type, i32 %own_device, ptr %others, ptr null)
  br label %ran
ran:
  %is_error = icmp ne i32 %code, 0
  br i1 %is_error, label %error, label %done
error:
  %raise = call ptr inttoptr (i64 {tuple_item} to ptr)(ptr %self, i64 2)
  %nothing = call ptr inttoptr (i64 {call_object} to ptr)(ptr %raise, ptr null)
  ret ptr %nothing
failed:
  ret ptr null
done:
  %none = inttoptr i64 {none} to ptr
  call void inttoptr (i64 {keep} to ptr)(ptr %none)
  ret ptr %none
}}

define i32 @pending(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  ret i32 -1
}}

define i32 @__tvm_ffi_address(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  store {{ i32, i32, i64 }} {{ i32 1, i32 0, i64 ptrtoint (ptr @call to i64) }}, ptr %result
  ret i32 0
}}

define i32 @__tvm_ffi_address_of_pending(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  store {{ i32, i32, i64 }} {{ i32 1, i32 0, i64 ptrtoint (ptr @pending to i64) }}, ptr %result
  ret i32 0
}}
"""


_BY_POSITION = 0x80
"""Python's flag of functions that take an array of arguments."""


class _Method(ctypes.Structure):
    """Python's description of a built-in function."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@dataclass(frozen=True)
class _Code:
    """The machine code of calls.

    Attributes:
        method: as Python describes it, which functions of it point to.
        raises: a function that raises what the last call of TVM's has failed with.
        module: has the code.
    """

    method: _Method
    raises: Any
    module: Any


def builtin(kernel: Any, kinds: Sequence[Kind]) -> Any:
    """A kernel as a built-in function, of torch's tensors and of Python's numbers.

    Where torch has no view of a tensor, it is the kernel, which takes the same.

    Args:
        kernel: as TVM calls it.
        kinds: of each of its arguments.
    """
    code = _code()
    if code is None:
        return kernel
    known = struct.pack("qq", kernel.__chandle__(), len(kinds)) + bytes(kinds)
    # What the function is of keeps the kernel alive, and the code.
    return _make(ctypes.addressof(code.method), (known, kernel, code.raises, code), None)


_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
_content = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@cache
def _code() -> _Code | None:
    """None where torch has no such view of a tensor, or TVM no such function."""
    exchange = _exchange()
    try:
        tvm_library = library(tvm_ffi, "libtvm_ffi.so")
        call = address(tvm_library, "TVMFFIFunctionCall")
        set_stream = address(tvm_library, "TVMFFIEnvSetStream")
    except (OSError, AttributeError):
        return None
    if exchange is None or not exchange.tensor or not exchange.stream:
        return None
    python = ctypes.pythonapi
    places = {
        "tuple_item": address(python, "PyTuple_GetItem"),
        "bytes_content": address(python, "PyBytes_AsString"),
        "as_double": address(python, "PyFloat_AsDouble"),
        "as_integer": address(python, "PyLong_AsLongLong"),
        "problem": address(python, "PyErr_Occurred"),
        "bad_argument": address(python, "PyErr_BadArgument"),
        "let_others_run": address(python, "PyEval_SaveThread"),
        "run_again": address(python, "PyEval_RestoreThread"),
        "call_object": address(python, "PyObject_CallObject"),
        "keep": address(python, "Py_IncRef"),
        "none": id(None),
        "call": call,
        "set_stream": set_stream,
        "view": exchange.tensor,
        "stream": exchange.stream,
        "cpu": _CPU,
    }
    kinds = {kind.name.lower(): int(kind) for kind in Kind}
    module = loaded(_CODE.format(**places, **kinds, **_KINDS_OF_TVM))
    method = _Method(b"kernel", module["address"](), _BY_POSITION, None)
    raises = tvm_ffi.Function.__from_extern_c__(module["address_of_pending"]())
    return _Code(method, raises, module)


def _exchange() -> _Exchange | None:
    """torch's functions that tell where a tensor is, and which stream is a GPU's current one."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    table = _Exchange.from_address(_content(capsule, b"dlpack_exchange_api"))
    return table if table.major == 1 else None


class _Exchange(ctypes.Structure):
    """DLPack's table of functions, version 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed", ctypes.c_void_p),
        ("object", ctypes.c_void_p),
        ("tensor", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]
