// Operations in order on the host: at once in the calling thread where they can be, else in a thread of the stream.
#pragma once

#include <cstdint>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "host_driver.h"

namespace wavecore {

class HostStream {
 public:
  explicit HostStream(HostDriver& driver) : driver_(driver) {}
  ~HostStream();

  void run(std::function<void()> work);
  // Waits for a counter before the operations after it.
  void wait(void* flag, uint32_t value);
  void synchronize();

  int64_t busy_until = 0;  // of the modelled link, in nanoseconds of the steady clock; for operations of the stream

 private:
  struct Operation {
    std::function<void()> work;  // empty: a wait
    void* flag = nullptr;
    uint32_t value = 0;
  };

  void enqueue(Operation operation);
  void serve();

  HostDriver& driver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;
  bool busy_ = false;  // the stream's thread is at an operation
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace wavecore
