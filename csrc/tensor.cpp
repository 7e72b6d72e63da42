#include "tensor.h"

#include "dlpack.h"

namespace wavecore {
namespace {

namespace py = pybind11;

// Names and dtypes looked up once: an attribute by an interned name costs a tenth of a lookup by a C string.
struct TorchNames {
  py::object data_ptr = py::str("data_ptr"), shape = py::str("shape"), stride = py::str("stride");
  py::object dtype = py::str("dtype"), is_cpu = py::str("is_cpu"), contiguous = py::str("contiguous");
  py::object to_float = py::str("float");
  py::object float32, bfloat16, float16, int32, int8;

  TorchNames() {
    py::module_ torch = py::module_::import("torch");
    float32 = torch.attr("float32");
    bfloat16 = torch.attr("bfloat16");
    float16 = torch.attr("float16");
    int32 = torch.attr("int32");
    int8 = torch.attr("int8");
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

int read_tuple(py::handle tuple, int64_t* out) {
  require(PyTuple_Check(tuple.ptr()) && PyTuple_GET_SIZE(tuple.ptr()) <= Tensor::kMaxRank);
  int rank = static_cast<int>(PyTuple_GET_SIZE(tuple.ptr()));
  for (int i = 0; i < rank; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
    if (out[i] == -1 && PyErr_Occurred()) throw py::error_already_set();
  }
  return rank;
}

// PyTorch's table, or null before 2.10.
const dlpack::ExchangeTable* exchange_table() {
  py::object type = py::module_::import("torch").attr("Tensor");
  if (!py::hasattr(type, "__dlpack_c_exchange_api__")) return nullptr;
  py::object capsule = type.attr("__dlpack_c_exchange_api__");
  void* table = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (!table) throw py::error_already_set();
  const auto* found = static_cast<const dlpack::ExchangeTable*>(table);
  return found->major == dlpack::kMajorVersion && found->view_of_object ? found : nullptr;
}

}  // namespace

Tensor::Tensor(py::object tensor) : owner_(std::move(tensor)) {
  static const auto* table = exchange_table();
  if (table)
    read(*table);
  else
    read_attributes();
}

void Tensor::read(const dlpack::ExchangeTable& table) {
  dlpack::View view;
  if (table.view_of_object(owner_.ptr(), &view) != 0) throw py::error_already_set();
  require(view.device_type == dlpack::kCpu && view.rank <= kMaxRank && view.type_lanes == 1);
  if (view.type_code == dlpack::kFloat && view.type_bits == 32)
    dtype_ = DType::float32;
  else if (view.type_code == dlpack::kBfloat && view.type_bits == 16)
    dtype_ = DType::bfloat16;
  else if (view.type_code == dlpack::kFloat && view.type_bits == 16)
    dtype_ = DType::float16;
  else if (view.type_code == dlpack::kInt && view.type_bits == 32)
    dtype_ = DType::int32;
  else if (view.type_code == dlpack::kInt && view.type_bits == 8)
    dtype_ = DType::int8;
  else
    throw Mismatch();
  rank_ = view.rank;
  for (int i = 0; i < rank_; ++i) {
    sizes_[i] = view.sizes[i];
    strides_[i] = view.strides[i];
  }
  data_ = static_cast<char*>(view.data) + view.byte_offset;
}

void Tensor::read_attributes() {
  const TorchNames& torch = names();
  rank_ = read_tuple(attribute(owner_, torch.shape), sizes_);
  read_tuple(call(owner_, torch.stride), strides_);
  py::object dtype = attribute(owner_, torch.dtype);
  if (dtype.is(torch.float32))
    dtype_ = DType::float32;
  else if (dtype.is(torch.bfloat16))
    dtype_ = DType::bfloat16;
  else if (dtype.is(torch.float16))
    dtype_ = DType::float16;
  else if (dtype.is(torch.int32))
    dtype_ = DType::int32;
  else if (dtype.is(torch.int8))
    dtype_ = DType::int8;
  else
    throw Mismatch();
  require(attribute(owner_, torch.is_cpu).ptr() == Py_True);
  data_ = PyLong_AsVoidPtr(call(owner_, torch.data_ptr).ptr());
  if (!data_ && PyErr_Occurred()) throw py::error_already_set();
}

Tensor::Tensor(py::handle tensor, int rank) : Tensor(py::reinterpret_borrow<py::object>(tensor)) {
  require(rank_ == rank);
}

Tensor Tensor::input(py::handle tensor, int rank) {
  Tensor view(tensor, rank);
  return view.rows_are_dense() ? view : Tensor(call(tensor, names().contiguous));
}

Tensor Tensor::contiguous(py::handle tensor, int rank) { return dense_within(tensor, rank, 0); }

Tensor Tensor::dense_within(py::handle tensor, int rank, int axis) {
  Tensor view(tensor, rank);
  return view.is_dense_within(axis) ? view : Tensor(call(tensor, names().contiguous));
}

Tensor Tensor::contiguous_flat(py::handle tensor) {
  Tensor view(py::reinterpret_borrow<py::object>(tensor));
  if (!view.is_contiguous()) view = Tensor(call(tensor, names().contiguous));
  view.sizes_[0] = view.elements();
  view.strides_[0] = 1;
  view.rank_ = 1;
  return view;
}

Tensor Tensor::float32(py::handle tensor, int rank, DType other) {
  Tensor view = contiguous(tensor, rank);
  require(view.dtype_ == other || view.dtype_ == DType::float32);
  return view.dtype_ == DType::float32 ? view : Tensor(call(view.owner_, names().to_float));
}

Tensor Tensor::output(py::handle tensor, int rank) {
  Tensor view(tensor, rank);
  require(view.rows_are_dense());
  return view;
}

Tensor Tensor::rows(py::handle tensor) {
  py::object source = py::reinterpret_borrow<py::object>(tensor);
  if (PyTuple_GET_SIZE(attribute(source, names().shape).ptr()) > kMaxRank)
    source = source.attr("flatten")(0, -2);  // a view where the strides allow it, else a copy
  Tensor view(source);
  require(view.rank_ >= 1);
  if (view.rows_are_dense() && view.merge_rows()) return view;
  Tensor copy(call(source, names().contiguous));
  copy.merge_rows();
  return copy;
}

// Merges all dimensions but the last into one, if their strides allow it.
bool Tensor::merge_rows() {
  int64_t rows = 1, stride = 0;
  for (int i = rank_ - 2; i >= 0; --i) {
    if (sizes_[i] == 1) continue;
    if (rows == 1)
      stride = strides_[i];
    else if (strides_[i] != rows * stride && rows * sizes_[i] != 0)
      return false;
    rows *= sizes_[i];
  }
  sizes_[1] = sizes_[rank_ - 1];
  strides_[1] = 1;
  sizes_[0] = rows;
  strides_[0] = stride;
  rank_ = 2;
  return true;
}

bool Tensor::is(std::initializer_list<int64_t> sizes) const {
  if (static_cast<int>(sizes.size()) != rank_) return false;
  const int64_t* own = sizes_;
  for (int64_t size : sizes) {
    if (size != kAny && size != *own) return false;
    ++own;
  }
  return true;
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= sizes_[i];
  return count;
}

bool Tensor::is_dense_within(int axis) const {
  int64_t expected = 1;
  for (int i = rank_ - 1; i >= axis; --i) {
    if (sizes_[i] != 1 && strides_[i] != expected) return false;
    expected *= sizes_[i];
  }
  return true;
}

}  // namespace wavecore
