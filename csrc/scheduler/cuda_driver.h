// The driver for NVIDIA devices: the CUDA driver API, loaded at run time, so that neither headers nor a toolkit are
// needed to build. The interface is declared here by hand, after NVIDIA's "CUDA Driver API" reference.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "driver.h"

namespace wavecore {

struct CudaFunctions;

class CudaDriver : public Driver {
 public:
  // `library` is a name for the dynamic loader.
  explicit CudaDriver(int device, const std::string& library = "libcuda.so.1");
  ~CudaDriver() override;

  const char* name() const override { return "cuda"; }
  void* allocate(size_t bytes) override;
  void free(void* memory) override;
  std::string share(void* memory) override;
  void* open(const std::string& handle) override;
  void close(void* memory) override;
  Stream create_stream() override;
  void destroy_stream(Stream stream) override;
  void copy(Stream stream, void* to, const void* from, size_t bytes) override;
  void write_value(Stream stream, void* flag, uint32_t value) override;
  void wait_value(Stream stream, void* flag, uint32_t value) override;
  void follow_compute(Stream stream) override;
  void synchronize(Stream stream) override;
  void set_value(void* flag, uint32_t value) override;
  uint32_t value(void* flag) override;
  int64_t written_at(void*, uint32_t) override { return 0; }
  bool computes_in_caller() const override { return false; }
  void cancel() override {}

  // The stream that the caller computes on, a CUstream.
  void set_compute_stream(void* stream) { compute_ = stream; }

 private:
  class Current;  // makes the context that of the calling thread, for a block
  void check(int result, const char* call) const;
  Stream queue(Stream stream) const { return stream ? stream : compute_; }

  CudaFunctions* cuda_ = nullptr;
  void* library_ = nullptr;
  int device_ = 0;
  void* context_ = nullptr;
  Stream compute_ = nullptr;
  Stream aside_ = nullptr;  // for counters read and set outside all other streams
  void* event_ = nullptr;
  mutable std::mutex mutex_;  // of aside_ and event_
};

}  // namespace wavecore
