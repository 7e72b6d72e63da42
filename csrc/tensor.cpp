#include "tensor.h"

namespace wavecore {
namespace {

namespace py = pybind11;

// Names and dtypes looked up once: an attribute by an interned name costs a tenth of a lookup by a C string.
struct TorchNames {
  py::object data_ptr = py::str("data_ptr"), shape = py::str("shape"), stride = py::str("stride");
  py::object dtype = py::str("dtype"), is_cpu = py::str("is_cpu"), contiguous = py::str("contiguous");
  py::object float32, bfloat16, float16, int32;

  TorchNames() {
    py::module_ torch = py::module_::import("torch");
    float32 = torch.attr("float32");
    bfloat16 = torch.attr("bfloat16");
    float16 = torch.attr("float16");
    int32 = torch.attr("int32");
  }
};

const TorchNames& names() {
  static const auto* instance = new TorchNames;  // never destroyed: the interpreter may be gone before us
  return *instance;
}

py::object attribute(py::handle object, const py::object& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (!value) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

py::object call(py::handle object, const py::object& name) {
  PyObject* value = PyObject_CallMethodNoArgs(object.ptr(), name.ptr());
  if (!value) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

void read_tuple(py::handle tuple, const char* name, int rank, int64_t* out) {
  if (!PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != rank)
    throw ArgumentError(name, "a tensor of rank " + std::to_string(rank), py::repr(tuple).cast<std::string>());
  for (int i = 0; i < rank; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
    if (out[i] == -1 && PyErr_Occurred()) throw py::error_already_set();
  }
}

}  // namespace

Tensor::Tensor(py::object tensor, const char* name, int rank) : owner_(std::move(tensor)), rank_(rank) {
  const TorchNames& torch = names();
  read_tuple(attribute(owner_, torch.shape), name, rank, sizes_);
  read_tuple(call(owner_, torch.stride), name, rank, strides_);
  py::object dtype = attribute(owner_, torch.dtype);
  if (dtype.is(torch.float32))
    dtype_ = DType::float32;
  else if (dtype.is(torch.bfloat16))
    dtype_ = DType::bfloat16;
  else if (dtype.is(torch.float16))
    dtype_ = DType::float16;
  else if (dtype.is(torch.int32))
    dtype_ = DType::int32;
  else
    throw ArgumentError(name, "float32, bfloat16, float16 or int32", py::str(dtype).cast<std::string>());
  if (!attribute(owner_, torch.is_cpu).is(py::bool_(true))) throw ArgumentError(name, "a CPU tensor", "another device");
  data_ = PyLong_AsVoidPtr(call(owner_, torch.data_ptr).ptr());
  if (!data_ && PyErr_Occurred()) throw py::error_already_set();
}

Tensor Tensor::input(py::handle tensor, const char* name, int rank) {
  Tensor view(py::reinterpret_borrow<py::object>(tensor), name, rank);
  return view.rows_are_dense() ? view : Tensor(call(tensor, names().contiguous), name, rank);
}

Tensor Tensor::contiguous(py::handle tensor, const char* name, int rank) {
  Tensor view(py::reinterpret_borrow<py::object>(tensor), name, rank);
  return view.is_contiguous() ? view : Tensor(call(tensor, names().contiguous), name, rank);
}

Tensor Tensor::output(py::handle tensor, const char* name, int rank) {
  Tensor view(py::reinterpret_borrow<py::object>(tensor), name, rank);
  if (!view.rows_are_dense())
    throw ArgumentError(name, "a last stride of 1, since it is written in place",
                        std::to_string(view.strides_[rank - 1]));
  return view;
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= sizes_[i];
  return count;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (sizes_[i] != 1 && strides_[i] != expected) return false;
    expected *= sizes_[i];
  }
  return true;
}

}  // namespace wavecore
