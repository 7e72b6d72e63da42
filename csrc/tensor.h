// A tensor of Python as pointer, sizes and strides, without libtorch: the one place where tensors cross.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace wavecore {

// A wrong argument; becomes `wavecore.errors.UsageError` in Python.
class ArgumentError : public std::invalid_argument {
 public:
  ArgumentError(const std::string& name, const std::string& expected, const std::string& got)
      : std::invalid_argument(name + ": expected " + expected + ", got " + got) {}
};

class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  // To read: brought to a last stride of 1 if need be, by a copy that this object owns.
  static Tensor input(pybind11::handle tensor, const char* name, int rank);
  // The same, wholly contiguous: for small tables, weights and rotations.
  static Tensor contiguous(pybind11::handle tensor, const char* name, int rank);
  // To write in place: the last stride has to be 1.
  static Tensor output(pybind11::handle tensor, const char* name, int rank);

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  int64_t size(int axis) const { return sizes_[axis]; }
  int64_t stride(int axis) const { return strides_[axis]; }
  int64_t elements() const;

 private:
  Tensor(pybind11::object tensor, const char* name, int rank);
  bool rows_are_dense() const { return rank_ == 0 || strides_[rank_ - 1] == 1 || sizes_[rank_ - 1] <= 1; }
  bool is_contiguous() const;

  pybind11::object owner_;
  void* data_ = nullptr;
  DType dtype_ = DType::float32;
  int rank_ = 0;
  int64_t sizes_[kMaxRank] = {};
  int64_t strides_[kMaxRank] = {};
};

}  // namespace wavecore
