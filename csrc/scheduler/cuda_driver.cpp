#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstring>

namespace wavecore {
namespace {

constexpr unsigned kNonBlocking = 1;        // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;      // CU_EVENT_DISABLE_TIMING
constexpr unsigned kWaitReached = 0;        // CU_STREAM_WAIT_VALUE_GEQ: (int32)(*flag - value) >= 0, so ticks may wrap
constexpr unsigned kWriteAfterEarlier = 0;  // CU_STREAM_WRITE_VALUE_DEFAULT: fences the stream's earlier work
constexpr unsigned kEnablePeerAccess = 1;   // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr size_t kHandleBytes = 64;         // CU_IPC_HANDLE_SIZE

using DevicePointer = unsigned long long;

struct IpcHandle {
  char bytes[kHandleBytes];
};

DevicePointer device_pointer(const void* address) { return reinterpret_cast<DevicePointer>(address); }

}  // namespace

struct CudaFunctions {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*context_retain)(void**, int);
  int (*context_release)(int);
  int (*context_push)(void*);
  int (*context_pop)(void**);
  int (*allocate)(DevicePointer*, size_t);
  int (*free)(DevicePointer);
  int (*fill)(DevicePointer, unsigned char, size_t, void*);
  int (*ipc_get)(IpcHandle*, DevicePointer);
  int (*ipc_open)(DevicePointer*, IpcHandle, unsigned);
  int (*ipc_close)(DevicePointer);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_synchronize)(void*);
  int (*copy)(DevicePointer, DevicePointer, size_t, void*);
  int (*copy_to_host)(void*, DevicePointer, size_t, void*);
  int (*write_value)(void*, DevicePointer, uint32_t, unsigned);
  int (*wait_value)(void*, DevicePointer, uint32_t, unsigned);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*error_name)(int, const char**);
};

// The context is that of the calling thread until the end of the block, then the one from before again: the caller's
// current device stays what it was.
class CudaDriver::Current {
 public:
  explicit Current(const CudaDriver& driver) : cuda_(driver.cuda_) {
    driver.check(cuda_->context_push(driver.context_), "cuCtxPushCurrent");
  }
  ~Current() {
    void* popped = nullptr;
    cuda_->context_pop(&popped);
  }
  Current(const Current&) = delete;

 private:
  CudaFunctions* cuda_;
};

CudaDriver::CudaDriver(int device, const std::string& library) {
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) throw WaveError("CUDA: expected " + library + " of an NVIDIA driver, got: " + dlerror());
  cuda_ = new CudaFunctions{};
  auto load = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library_, symbol));
    if (function) return;
    delete cuda_;
    throw WaveError(std::string("CUDA: expected a driver with ") + symbol + ", got none in " + library);
  };
  load(cuda_->init, "cuInit");
  load(cuda_->device_get, "cuDeviceGet");
  load(cuda_->context_retain, "cuDevicePrimaryCtxRetain");
  load(cuda_->context_release, "cuDevicePrimaryCtxRelease_v2");
  load(cuda_->context_push, "cuCtxPushCurrent_v2");
  load(cuda_->context_pop, "cuCtxPopCurrent_v2");
  load(cuda_->allocate, "cuMemAlloc_v2");
  load(cuda_->free, "cuMemFree_v2");
  load(cuda_->fill, "cuMemsetD8Async");
  load(cuda_->ipc_get, "cuIpcGetMemHandle");
  load(cuda_->ipc_open, "cuIpcOpenMemHandle_v2");
  load(cuda_->ipc_close, "cuIpcCloseMemHandle");
  load(cuda_->stream_create, "cuStreamCreate");
  load(cuda_->stream_destroy, "cuStreamDestroy_v2");
  load(cuda_->stream_synchronize, "cuStreamSynchronize");
  load(cuda_->copy, "cuMemcpyDtoDAsync_v2");
  load(cuda_->copy_to_host, "cuMemcpyDtoHAsync_v2");
  load(cuda_->write_value, "cuStreamWriteValue32_v2");
  load(cuda_->wait_value, "cuStreamWaitValue32_v2");
  load(cuda_->event_create, "cuEventCreate");
  load(cuda_->event_destroy, "cuEventDestroy_v2");
  load(cuda_->event_record, "cuEventRecord");
  load(cuda_->stream_wait_event, "cuStreamWaitEvent");
  load(cuda_->error_name, "cuGetErrorName");
  check(cuda_->init(0), "cuInit");
  check(cuda_->device_get(&device_, device), "cuDeviceGet");
  check(cuda_->context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  Current here(*this);
  check(cuda_->stream_create(&aside_, kNonBlocking), "cuStreamCreate");
  check(cuda_->event_create(&event_, kDisableTiming), "cuEventCreate");
}

CudaDriver::~CudaDriver() {
  cuda_->context_push(context_);
  cuda_->event_destroy(event_);
  cuda_->stream_destroy(aside_);
  void* popped = nullptr;
  cuda_->context_pop(&popped);
  cuda_->context_release(device_);
  delete cuda_;
  dlclose(library_);
}

void CudaDriver::check(int result, const char* call) const {
  if (!result) return;
  const char* text = nullptr;
  cuda_->error_name(result, &text);
  throw WaveError(std::string(call) + ": " + (text ? text : "error " + std::to_string(result)));
}

void* CudaDriver::allocate(size_t bytes) {
  Current here(*this);
  DevicePointer memory = 0;
  check(cuda_->allocate(&memory, bytes), "cuMemAlloc");
  std::lock_guard<std::mutex> lock(mutex_);
  check(cuda_->fill(memory, 0, bytes, aside_), "cuMemsetD8Async");
  check(cuda_->stream_synchronize(aside_), "cuStreamSynchronize");
  return reinterpret_cast<void*>(memory);
}

void CudaDriver::free(void* memory) {
  Current here(*this);
  check(cuda_->free(device_pointer(memory)), "cuMemFree");
}

std::string CudaDriver::share(void* memory) {
  Current here(*this);
  IpcHandle handle;
  check(cuda_->ipc_get(&handle, device_pointer(memory)), "cuIpcGetMemHandle");
  return "cuda " + std::string(handle.bytes, kHandleBytes);
}

void* CudaDriver::open(const std::string& text) {
  Current here(*this);
  IpcHandle handle;
  if (text.size() != 5 + kHandleBytes || text.compare(0, 5, "cuda "))
    throw WaveError("device memory: expected a handle of a CUDA process");
  std::memcpy(handle.bytes, text.data() + 5, kHandleBytes);
  DevicePointer memory = 0;
  check(cuda_->ipc_open(&memory, handle, kEnablePeerAccess), "cuIpcOpenMemHandle");
  return reinterpret_cast<void*>(memory);
}

void CudaDriver::close(void* memory) {
  Current here(*this);
  check(cuda_->ipc_close(device_pointer(memory)), "cuIpcCloseMemHandle");
}

Driver::Stream CudaDriver::create_stream() {
  Current here(*this);
  Stream stream = nullptr;
  check(cuda_->stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}

void CudaDriver::destroy_stream(Stream stream) {
  Current here(*this);
  check(cuda_->stream_destroy(stream), "cuStreamDestroy");
}

void CudaDriver::copy(Stream stream, void* to, const void* from, size_t bytes) {
  Current here(*this);
  check(cuda_->copy(device_pointer(to), device_pointer(from), bytes, queue(stream)), "cuMemcpyDtoDAsync");
}

void CudaDriver::write_value(Stream stream, void* flag, uint32_t value) {
  Current here(*this);
  check(cuda_->write_value(queue(stream), device_pointer(flag), value, kWriteAfterEarlier), "cuStreamWriteValue32");
}

void CudaDriver::wait_value(Stream stream, void* flag, uint32_t value) {
  Current here(*this);
  check(cuda_->wait_value(queue(stream), device_pointer(flag), value, kWaitReached), "cuStreamWaitValue32");
}

void CudaDriver::follow_compute(Stream stream) {
  Current here(*this);
  std::lock_guard<std::mutex> lock(mutex_);
  // A wait refers to the latest record at the time of the call, so one event serves every stream.
  check(cuda_->event_record(event_, compute_), "cuEventRecord");
  check(cuda_->stream_wait_event(stream, event_, 0), "cuStreamWaitEvent");
}

void CudaDriver::synchronize(Stream stream) {
  Current here(*this);
  check(cuda_->stream_synchronize(queue(stream)), "cuStreamSynchronize");
}

void CudaDriver::set_value(void* flag, uint32_t value) {
  Current here(*this);
  std::lock_guard<std::mutex> lock(mutex_);
  check(cuda_->write_value(aside_, device_pointer(flag), value, kWriteAfterEarlier), "cuStreamWriteValue32");
  check(cuda_->stream_synchronize(aside_), "cuStreamSynchronize");
}

uint32_t CudaDriver::value(void* flag) {
  Current here(*this);
  std::lock_guard<std::mutex> lock(mutex_);
  uint32_t seen = 0;
  check(cuda_->copy_to_host(&seen, device_pointer(flag), sizeof(seen), aside_), "cuMemcpyDtoHAsync");
  check(cuda_->stream_synchronize(aside_), "cuStreamSynchronize");
  return seen;
}

}  // namespace wavecore
