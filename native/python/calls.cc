// rabit_calls: the calls that cffi would take too long for, as a Python extension module.
//
// cffi needs an object for the memory of an array, one for its release, and libffi for the call;
// around a small tensor that takes longer than the ranks need to combine it.  Nothing here but
// reading arguments: whoever has no such module makes the same calls through cffi.
//
// Limited API of CPython, hence one module for all its versions.  It knows the native library by
// the addresses that Python passes, and so fits whichever was loaded.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "include/rabit_abi.h"
#include "python/tensor_memory.h"

namespace {

using rabit::python::TensorMemory;

constexpr Py_ssize_t kSeveralMax = 1 << 20;
constexpr double kTimeoutMax = 1e9;  // seconds; so that milliseconds fit into 64 bits

// What of the library is called, and for which engine.  engine: null when it takes no more work,
// which the library refuses.
struct Calls {
  PyObject_HEAD;
  decltype(&rabit_run) run;
  decltype(&rabit_run_ordered) run_ordered;
  decltype(&rabit_submit) submit;
  rabit_engine* engine;
  rabit_engine* live;  // the same; for what is in flight, also when it takes no more work
  decltype(&rabit_wait) wait;
  decltype(&rabit_wait_on_stream) wait_on_stream;
  decltype(&rabit_release) release;
  decltype(&rabit_output) output;
};

using Arguments = PyObject* const*;

Calls& CallsOf(PyObject* self) { return *reinterpret_cast<Calls*>(self); }

bool HasArguments(const char* function, Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, wanted, count);
  return false;
}

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

// The caller goes another way, which works or says why.
PyObject* DoesNotFit() {
  PyErr_Clear();
  Py_INCREF(Py_False);
  return Py_False;
}

// A request that was made before, for other tensors.
class Repeated {
 public:
  // arguments: address of a rabit_request, which is only read; input, None: the memory that the
  // request has; output, None: the same memory, False: the engine's; name, None: that of the
  // request.  False: they do not fit.
  bool Read(Arguments arguments) {
    const auto* const kept = static_cast<const rabit_request*>(PyLong_AsVoidPtr(arguments[0]));
    if (kept == nullptr) return false;
    request = *kept;
    if (arguments[1] != Py_None && !ReadMemory(*kept, arguments[1], arguments[2])) return false;
    if (arguments[3] == Py_None) return true;
    request.name = PyUnicode_AsUTF8AndSize(arguments[3], nullptr);
    return request.name != nullptr;
  }

  rabit_request request{};

 private:
  bool ReadMemory(const rabit_request& kept, PyObject* input, PyObject* output) {
    const bool is_in_place = output == Py_None;
    if (!input_.Read(input, is_in_place) || !input_.IsLike(kept.input)) return false;
    input_.Place(request.input);
    if (output == Py_False) return true;
    input_.Place(request.output);
    if (is_in_place) return true;
    if (!output_.Read(output, true) || !output_.IsLike(kept.output)) return false;
    output_.Place(request.output);
    return true;
  }

  TensorMemory input_, output_;
};

// ordered_allreduce(tensor, op, timeout_seconds) -> code, or False: not what is understood here.
// Among all ranks, in place.
PyObject* OrderedAllreduce(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("ordered_allreduce", count, 3)) return nullptr;
  const Calls& calls = CallsOf(self);
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = RABIT_ALLREDUCE;
  request.root = -1;
  request.backend = -1;
  request.prescale = request.postscale = 1.0;
  request.input.device_kind = 1;
  request.reduce_op = static_cast<int32_t>(PyLong_AsLong(arguments[1]));
  const double timeout = PyFloat_AsDouble(arguments[2]);
  if (PyErr_Occurred() != nullptr || std::isnan(timeout) || std::fabs(timeout) > kTimeoutMax) {
    return DoesNotFit();
  }
  TensorMemory memory;
  if (!memory.Read(arguments[0], true) || !memory.is_on_host()) return DoesNotFit();
  request.input.data = memory.data();
  request.input.count = memory.count();
  request.input.dtype = memory.dtype();
  request.output = request.input;
  int32_t code = RABIT_OK;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.run_ordered(calls.engine, &request, static_cast<int64_t>(timeout * 1000));
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(code);
}

// run(request, input, output, name, timeout_ms, keeps, handles) -> None, False, or a code.
// None: it has succeeded and the handle is released, which it is not if the caller keeps it.
// False: the tensors do not fit the request.  handles: a list that gets the handle if there is one
// that is not released; a signal's exception may come in place of what this returns.
PyObject* RunAgain(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("run", count, 7)) return nullptr;
  const Calls& calls = CallsOf(self);
  const int64_t timeout_ms = PyLong_AsLongLong(arguments[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Repeated repeated;
  if (!repeated.Read(arguments)) return DoesNotFit();
  const bool keeps = arguments[5] == Py_True;
  int32_t code = RABIT_OK;
  rabit_handle handle = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.run(calls.engine, &repeated.request, timeout_ms, &handle);
  if (code == RABIT_OK && !keeps) calls.release(calls.engine, handle);
  Py_END_ALLOW_THREADS;
  if (code == RABIT_OK && !keeps) return None();
  if (handle != 0) {
    PyObject* const value = PyLong_FromUnsignedLongLong(handle);
    if (value == nullptr) return nullptr;
    const int added = PyList_Append(arguments[6], value);
    Py_DECREF(value);
    if (added != 0) return nullptr;
  }
  return PyLong_FromLong(code);
}

// start(request, input, output, name) -> handle, -code, or False: the tensors do not fit.
PyObject* StartAgain(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("start", count, 4)) return nullptr;
  const Calls& calls = CallsOf(self);
  Repeated repeated;
  if (!repeated.Read(arguments)) return DoesNotFit();
  rabit_handle handle = 0;
  // With the GIL: nothing waits in there, and giving it away would cost as much as the call.
  const int32_t code = calls.submit(calls.engine, &repeated.request, 1, &handle);
  if (code != RABIT_OK) return PyLong_FromLong(-code);
  return PyLong_FromUnsignedLongLong(handle);
}

// The list `values` gives the i-th of `count` requests its memory, which is like what it was made
// for.
bool Place(PyObject* values, Py_ssize_t count, rabit_tensor rabit_request::* tensor,
           bool is_written, rabit_request* requests) {
  if (PyList_Check(values) == 0 || PyList_Size(values) != count) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    TensorMemory memory;
    PyObject* const value = PyList_GetItem(values, i);
    if (value == nullptr || !memory.Read(value, is_written)) return false;
    if (!memory.IsLike(requests[i].*tensor)) return false;
    memory.Place(requests[i].*tensor);
  }
  return true;
}

// start_several(requests, inputs, outputs) -> list of handles, -code, or False: the tensors do not
// fit.  requests: the address of as many as there are inputs, which are only read; outputs, None:
// the inputs; False: those of the requests.  They are submitted together.
PyObject* StartSeveral(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("start_several", count, 3)) return nullptr;
  const Calls& calls = CallsOf(self);
  const auto* const kept = static_cast<const rabit_request*>(PyLong_AsVoidPtr(arguments[0]));
  const Py_ssize_t size = PyList_Check(arguments[1]) != 0 ? PyList_Size(arguments[1]) : 0;
  if (kept == nullptr || size == 0 || size > kSeveralMax) return DoesNotFit();
  std::vector<rabit_request> requests(kept, kept + size);
  const bool is_in_place = arguments[2] == Py_None;
  PyObject* const outputs = is_in_place ? arguments[1] : arguments[2];
  if (outputs != Py_False && !Place(outputs, size, &rabit_request::output, true, requests.data())) {
    return DoesNotFit();
  }
  if (is_in_place) {
    for (rabit_request& request : requests) {
      request.input.data = request.output.data;
      request.input.stream = request.output.stream;
    }
  } else if (!Place(arguments[1], size, &rabit_request::input, false, requests.data())) {
    return DoesNotFit();
  }
  std::vector<rabit_handle> handles(requests.size());
  PyObject* const list = PyList_New(size);  // before there is something that nobody would wait for
  if (list == nullptr) return nullptr;
  const auto wanted = static_cast<int32_t>(size);
  const int32_t code = calls.submit(calls.engine, requests.data(), wanted, handles.data());
  if (code != RABIT_OK) {
    Py_DECREF(list);
    return PyLong_FromLong(-code);
  }
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const handle = PyLong_FromUnsignedLongLong(handles[static_cast<size_t>(i)]);
    if (handle == nullptr || PyList_SetItem(list, i, handle) != 0) return nullptr;
  }
  return list;
}

// wait(handle, timeout_ms) -> code.
PyObject* Wait(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("wait", count, 2)) return nullptr;
  const Calls& calls = CallsOf(self);
  const rabit_handle handle = PyLong_AsUnsignedLongLong(arguments[0]);
  const int64_t timeout_ms = PyLong_AsLongLong(arguments[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  int32_t code = RABIT_OK;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.wait(calls.live, handle, timeout_ms);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(code);
}

// The numbers of a list of handles; false, with an error set, if it is none.
bool ReadHandles(PyObject* list, std::vector<rabit_handle>& handles) {
  const Py_ssize_t size = PyList_Size(list);
  for (Py_ssize_t i = 0; i < size; ++i) {
    handles.push_back(PyLong_AsUnsignedLongLong(PyList_GetItem(list, i)));
  }
  return PyErr_Occurred() == nullptr;
}

// wait_several(handles, ended, timeout_ms) -> how many of them have ended, of which `ended` are
// known, or -1 if the next one has failed.  In their order; fewer than all if the time is over.  A
// time below zero is a slice of a wait without a limit, as that of rabit_wait.
PyObject* WaitSeveral(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("wait_several", count, 3)) return nullptr;
  const Calls& calls = CallsOf(self);
  std::vector<rabit_handle> handles;
  if (!ReadHandles(arguments[0], handles)) return nullptr;
  size_t ended = PyLong_AsSize_t(arguments[1]);
  const int64_t timeout_ms = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  int32_t code = RABIT_OK;
  Py_BEGIN_ALLOW_THREADS;
  const bool is_slice = timeout_ms < 0;
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::milliseconds(is_slice ? -timeout_ms : timeout_ms);
  while (ended < handles.size() && code == RABIT_OK) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    code = calls.wait(
        calls.live, handles[ended],
        is_slice ? -std::max<int64_t>(left.count(), 2) : std::max<int64_t>(left.count(), 0));
    ended += code == RABIT_OK ? 1 : 0;
  }
  Py_END_ALLOW_THREADS;
  if (code != RABIT_OK && code != RABIT_TIMED_OUT) return PyLong_FromLong(-1);
  return PyLong_FromSize_t(ended);
}

// release_several(handles).
PyObject* ReleaseSeveral(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("release_several", count, 1)) return nullptr;
  std::vector<rabit_handle> handles;
  if (!ReadHandles(arguments[0], handles)) return nullptr;
  const Calls& calls = CallsOf(self);
  for (const rabit_handle handle : handles) calls.release(calls.live, handle);
  return None();
}

// wait_on_stream(handle, stream, timeout_ms) -> code.
PyObject* WaitOnStream(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("wait_on_stream", count, 3)) return nullptr;
  const Calls& calls = CallsOf(self);
  const rabit_handle handle = PyLong_AsUnsignedLongLong(arguments[0]);
  const uint64_t stream = PyLong_AsUnsignedLongLong(arguments[1]);
  const int64_t timeout_ms = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  int32_t code = RABIT_OK;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.wait_on_stream(calls.live, handle, stream, timeout_ms);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(code);
}

// output(handle) -> (address, dtype, shape), or -code.
PyObject* Output(PyObject* self, Arguments arguments, Py_ssize_t count) {
  if (!HasArguments("output", count, 1)) return nullptr;
  const Calls& calls = CallsOf(self);
  const rabit_handle handle = PyLong_AsUnsignedLongLong(arguments[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  rabit_tensor tensor{};
  int64_t extents[8];
  const int32_t code = calls.output(calls.live, handle, &tensor, extents, nullptr);
  if (code != RABIT_OK) return PyLong_FromLong(-code);
  PyObject* const shape = PyTuple_New(tensor.ndim);
  if (shape == nullptr) return nullptr;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    PyObject* const extent = PyLong_FromLongLong(extents[i]);
    if (extent == nullptr || PyTuple_SetItem(shape, i, extent) != 0) {
      Py_DECREF(shape);
      return nullptr;
    }
  }
  const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(tensor.data));
  return Py_BuildValue("KiN", address, static_cast<int>(tensor.dtype), shape);
}

// refuse_work(): from now on every call for new work fails.
PyObject* RefuseWork(PyObject* self, PyObject*) {
  CallsOf(self).engine = nullptr;
  return None();
}

// Calls(run, run_ordered, submit, wait, wait_on_stream, release, output, engine): addresses.
int Initialize(PyObject* self, PyObject* arguments, PyObject*) {
  unsigned long long address[8];
  if (!PyArg_ParseTuple(arguments, "KKKKKKKK", &address[0], &address[1], &address[2], &address[3],
                        &address[4], &address[5], &address[6], &address[7])) {
    return -1;
  }
  Calls& calls = CallsOf(self);
  calls.run = reinterpret_cast<decltype(calls.run)>(address[0]);
  calls.run_ordered = reinterpret_cast<decltype(calls.run_ordered)>(address[1]);
  calls.submit = reinterpret_cast<decltype(calls.submit)>(address[2]);
  calls.wait = reinterpret_cast<decltype(calls.wait)>(address[3]);
  calls.wait_on_stream = reinterpret_cast<decltype(calls.wait_on_stream)>(address[4]);
  calls.release = reinterpret_cast<decltype(calls.release)>(address[5]);
  calls.output = reinterpret_cast<decltype(calls.output)>(address[6]);
  calls.engine = calls.live = reinterpret_cast<rabit_engine*>(address[7]);
  return 0;
}

// has_exchange(tensor) -> whether its type offers DLPack's C exchange interface.
PyObject* HasExchange(PyObject*, PyObject* tensor) {
  return PyBool_FromLong(rabit::python::HasExchange(tensor) ? 1 : 0);
}

PyCFunction Quick(PyObject* (*function)(PyObject*, Arguments, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef calls_methods[] = {
    {"ordered_allreduce", Quick(OrderedAllreduce), METH_FASTCALL, nullptr},
    {"run", Quick(RunAgain), METH_FASTCALL, nullptr},
    {"start", Quick(StartAgain), METH_FASTCALL, nullptr},
    {"start_several", Quick(StartSeveral), METH_FASTCALL, nullptr},
    {"wait", Quick(Wait), METH_FASTCALL, nullptr},
    {"wait_several", Quick(WaitSeveral), METH_FASTCALL, nullptr},
    {"release_several", Quick(ReleaseSeveral), METH_FASTCALL, nullptr},
    {"wait_on_stream", Quick(WaitOnStream), METH_FASTCALL, nullptr},
    {"output", Quick(Output), METH_FASTCALL, nullptr},
    {"refuse_work", RefuseWork, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot calls_slots[] = {{Py_tp_init, reinterpret_cast<void*>(Initialize)},
                             {Py_tp_methods, calls_methods},
                             {0, nullptr}};

PyType_Spec calls_spec = {"rabit_calls.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};

PyMethodDef methods[] = {{"has_exchange", HasExchange, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

int Fill(PyObject* module) {
  if (PyModule_AddIntConstant(module, "ABI_VERSION", RABIT_ABI_VERSION) != 0) return -1;
  PyObject* const type = PyType_FromModuleAndSpec(module, &calls_spec, nullptr);
  if (type == nullptr) return -1;
  const int added = PyModule_AddObjectRef(module, "Calls", type);
  Py_DECREF(type);
  return added;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(Fill)}, {0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rabit_calls", nullptr, 0, methods, slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_rabit_calls() { return PyModuleDef_Init(&definition); }
