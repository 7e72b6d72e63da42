// Operations in order on the host: at once in the calling thread where they can be, else in a thread of the stream.
#pragma once

#include <chrono>
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

  // Runs `work`; not before `duration` has passed since the operations before it were over.
  void run(std::function<void()> work, std::chrono::nanoseconds duration);
  // Waits for a counter before the operations after it.
  void wait(void* flag, uint32_t value);
  void synchronize();

 private:
  struct Operation {
    std::function<void()> work;  // empty: a wait
    std::chrono::nanoseconds duration{0};
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
