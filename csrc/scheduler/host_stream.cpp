#include "host_stream.h"

#include <utility>

namespace wavecore {

HostStream::~HostStream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostStream::run(std::function<void()> work) {
  Operation operation;
  operation.work = std::move(work);
  enqueue(std::move(operation));
}

void HostStream::wait(void* flag, uint32_t value) {
  Operation operation;
  operation.flag = flag;
  operation.value = value;
  enqueue(std::move(operation));
}

void HostStream::enqueue(Operation operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Waking a thread costs more than most operations take: what can run now runs here.
  if (!busy_ && waiting_.empty()) {
    if (operation.work) return operation.work();
    if (driver_.reached_value(operation.flag, operation.value)) return;
  }
  waiting_.push_back(std::move(operation));
  if (!thread_.joinable()) thread_ = std::thread(&HostStream::serve, this);
  changed_.notify_all();
}

void HostStream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
}

void HostStream::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Operation operation = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    // A cancelled stream passes its operations by: nothing more is written to anyone's memory.
    if (!operation.work) {
      driver_.wait(operation.flag, operation.value, 0);
    } else if (!driver_.cancelled()) {
      operation.work();
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace wavecore
