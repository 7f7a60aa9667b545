// rabit_calls: the calls that cffi would take too long for, as a Python extension module.
//
// cffi needs an object for the memory of an array, one for its release, and libffi for the call;
// around a small tensor that takes longer than the ranks need to combine it.  Nothing here but
// reading arguments: whoever has no such module makes the same calls through cffi.
//
// Limited API of CPython, hence one module for all its versions.  It knows the native library by
// the addresses that Python passes, and so fits whichever was loaded.
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <cstdint>

#include "include/rabit_abi.h"

namespace {

using Run = decltype(&rabit_run);
using RunOrdered = decltype(&rabit_run_ordered);
using Release = decltype(&rabit_release);

constexpr double kTimeoutMax = 1e9;  // seconds; so that milliseconds fit into 64 bits
constexpr int kItemBytes[] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2};  // by rabit_dtype
static_assert(sizeof kItemBytes / sizeof *kItemBytes == RABIT_BFLOAT16 + 1);

// ordered_allreduce(function, engine, array, dtype, op, timeout_seconds) -> code.
// function, engine: the addresses of rabit_run_ordered and of the engine, 0 for none.
// Among all ranks, in place.  Raises what the array raises if it gives no such memory.
PyObject* OrderedAllreduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6) {
    PyErr_Format(PyExc_TypeError, "ordered_allreduce takes 6 arguments, not %zd", count);
    return nullptr;
  }
  const auto run = reinterpret_cast<RunOrdered>(PyLong_AsVoidPtr(arguments[0]));
  auto* const engine = static_cast<rabit_engine*>(PyLong_AsVoidPtr(arguments[1]));
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = RABIT_ALLREDUCE;
  request.root = -1;
  request.backend = -1;
  request.prescale = request.postscale = 1.0;
  request.input.device_kind = 1;
  const long dtype = PyLong_AsLong(arguments[3]);
  request.reduce_op = static_cast<int32_t>(PyLong_AsLong(arguments[4]));
  const double timeout = PyFloat_AsDouble(arguments[5]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (dtype < 0 || dtype > RABIT_BFLOAT16) {
    return PyErr_Format(PyExc_ValueError, "the type %ld is unknown; see rabit_dtype", dtype);
  }
  if (std::isnan(timeout) || std::fabs(timeout) > kTimeoutMax) {
    return PyErr_Format(PyExc_ValueError, "the timeout is no number of seconds");
  }
  Py_buffer memory;  // in row-major order, or there is none
  if (PyObject_GetBuffer(arguments[2], &memory, PyBUF_WRITABLE) != 0) return nullptr;
  request.input.data = memory.buf;
  request.input.count = memory.len / kItemBytes[dtype];
  request.input.dtype = static_cast<int32_t>(dtype);
  request.output = request.input;
  int32_t code = RABIT_OK;
  Py_BEGIN_ALLOW_THREADS;
  code = run(engine, &request, static_cast<int64_t>(timeout * 1000));
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&memory);
  return PyLong_FromLong(code);
}

// run_again(run, release, engine, request, array, timeout_ms) -> None, or (code, handle).
// run, release, engine, request: the addresses of rabit_run, rabit_release, the engine and a
// rabit_request, which is read only; its input and output are the array.  None: it has succeeded
// and the handle is released. Raises what the array raises if it gives no such memory.
PyObject* RunAgain(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6) {
    PyErr_Format(PyExc_TypeError, "run_again takes 6 arguments, not %zd", count);
    return nullptr;
  }
  const auto run = reinterpret_cast<Run>(PyLong_AsVoidPtr(arguments[0]));
  const auto release = reinterpret_cast<Release>(PyLong_AsVoidPtr(arguments[1]));
  auto* const engine = static_cast<rabit_engine*>(PyLong_AsVoidPtr(arguments[2]));
  const auto* const kept = static_cast<const rabit_request*>(PyLong_AsVoidPtr(arguments[3]));
  const int64_t timeout_ms = PyLong_AsLongLong(arguments[5]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_buffer memory;
  if (PyObject_GetBuffer(arguments[4], &memory, PyBUF_WRITABLE) != 0) return nullptr;
  rabit_request request = *kept;
  if (memory.len != request.input.count * kItemBytes[request.input.dtype]) {
    PyBuffer_Release(&memory);
    return PyErr_Format(PyExc_ValueError, "an array of another size");
  }
  request.input.data = request.output.data = memory.buf;
  int32_t code = RABIT_OK;
  rabit_handle handle = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = run(engine, &request, timeout_ms, &handle);
  if (code == RABIT_OK) release(engine, handle);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&memory);
  if (code != RABIT_OK) {
    return Py_BuildValue("iK", static_cast<int>(code), static_cast<unsigned long long>(handle));
  }
  Py_INCREF(Py_None);
  return Py_None;
}

PyCFunction Quick(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef methods[] = {{"ordered_allreduce", Quick(OrderedAllreduce), METH_FASTCALL, nullptr},
                         {"run_again", Quick(RunAgain), METH_FASTCALL, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

int SetConstants(PyObject* module) {
  return PyModule_AddIntConstant(module, "ABI_VERSION", RABIT_ABI_VERSION);
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(SetConstants)}, {0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rabit_calls", nullptr, 0, methods, slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_rabit_calls() { return PyModuleDef_Init(&definition); }
