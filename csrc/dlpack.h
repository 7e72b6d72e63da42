// What this module uses of DLPack 1.x: the view of a tensor, and the table through which PyTorch 2.10 and later fills
// one without Python objects in between. The layout is that of the DLPack standard.
#pragma once

#include <cstdint>

namespace wavecore::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCpu = 1;
enum TypeCode : uint8_t { kInt = 0, kFloat = 2, kBfloat = 4 };

struct View {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* sizes;
  int64_t* strides;
  uint64_t byte_offset;
};

struct ExchangeTable {
  uint32_t major;
  uint32_t minor;
  ExchangeTable* previous;
  void* allocate;
  void* managed_from_object;
  void* object_from_managed;
  int (*view_of_object)(void* object, View* out);  // borrows sizes and strides; not 0 when an error is set
  void* current_stream;
};

}  // namespace wavecore::dlpack
