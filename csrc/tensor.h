// A tensor of Python as pointer, sizes and strides, without libtorch: the one place where tensors cross.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace wavecore {

namespace dlpack {
struct ExchangeTable;
}

// A value out of range; becomes `wavecore.errors.UsageError` in Python.
class ArgumentError : public std::invalid_argument {
 public:
  ArgumentError(const std::string& name, const std::string& expected, const std::string& got)
      : std::invalid_argument(name + ": expected " + expected + ", got " + got) {}
};

// Ranks, dtypes, devices or shapes that do not fit. wavecore/ops/checks.py says in words what is wrong: checking
// there first would cost as much as a small kernel.
class Mismatch : public std::exception {};

inline void require(bool fits) {
  if (!fits) throw Mismatch();
}

class Tensor {
 public:
  static constexpr int kMaxRank = 5;
  static constexpr int64_t kAny = -1;

  // To read: brought to a last stride of 1 if need be, by a copy that this object owns.
  static Tensor input(pybind11::handle tensor, int rank);
  // To read as [rows, D]: the leading dimensions are merged, by a copy if need be.
  static Tensor rows(pybind11::handle tensor);
  // To read, wholly contiguous: for small tables and rotations.
  static Tensor contiguous(pybind11::handle tensor, int rank);
  // To read: contiguous in all dimensions from `axis` on, by a copy if need be.
  static Tensor dense_within(pybind11::handle tensor, int rank, int axis);
  // To read, wholly contiguous, as one dimension.
  static Tensor contiguous_flat(pybind11::handle tensor);
  // To read as contiguous float32: for weights, which are of dtype `other` or float32.
  static Tensor float32(pybind11::handle tensor, int rank, DType other);
  // To write in place: the last stride has to be 1.
  static Tensor output(pybind11::handle tensor, int rank);

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  int64_t size(int axis) const { return sizes_[axis]; }
  int64_t stride(int axis) const { return strides_[axis]; }
  int64_t elements() const;
  bool is_floating() const { return dtype_ < DType::int32; }
  // Whether the sizes are these; kAny fits every size.
  bool is(std::initializer_list<int64_t> sizes) const;
  bool is_contiguous() const { return is_dense_within(0); }
  // Whether each index of the dimensions before `axis` names a contiguous piece of memory.
  bool is_dense_within(int axis) const;

 private:
  explicit Tensor(pybind11::object tensor);
  Tensor(pybind11::handle tensor, int rank);
  void read(const dlpack::ExchangeTable& table);
  void read_attributes();
  bool merge_rows();
  bool rows_are_dense() const { return rank_ == 0 || strides_[rank_ - 1] == 1 || sizes_[rank_ - 1] <= 1; }

  pybind11::object owner_;
  void* data_ = nullptr;
  DType dtype_ = DType::float32;
  int rank_ = 0;
  int64_t sizes_[kMaxRank] = {};
  int64_t strides_[kMaxRank] = {};
};

}  // namespace wavecore
