// The driver for processes on one machine without a device: shared memory, threads, and waits on futexes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "driver.h"

namespace wavecore {

class HostStream;

class HostDriver : public Driver {
 public:
  struct Options {
    // A wait polls this long before it sleeps, giving way to others on its core: sensible only while every process
    // has a core of its own.
    int64_t spin_ns = 0;
    // Model of a link, for measurements: counters written after copies on a stream count only when the bytes would
    // have passed at this rate. No core is occupied meanwhile. 0: copies are as fast as the memory.
    double link_bytes_per_us = 0;
  };

  explicit HostDriver(Options options);
  ~HostDriver() override;

  const char* name() const override { return "host"; }
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
  void follow_compute(Stream) override {}
  void synchronize(Stream stream) override;
  void set_value(void* flag, uint32_t value) override;
  uint32_t value(void* flag) override;
  bool reached_value(void* flag, uint32_t value) override;
  int64_t written_at(void* flag, uint32_t value) override;
  bool computes_in_caller() const override { return true; }
  void cancel() override { cancelled_.store(true); }

  // For streams.
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  bool wait(void* flag, uint32_t value, int64_t spin_ns);  // false when cancelled

 private:
  struct Mapping {
    size_t bytes;
    int file;  // -1 for memory of another process
  };

  void* map(int file, size_t bytes);
  void unmap(void* memory);

  const Options options_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;  // of mappings_
  std::map<void*, Mapping> mappings_;
};

}  // namespace wavecore
