// A CUDA driver without a device, for tests: streams are threads, memory is that of the process.
//
// It delays operations at random, so that streams run in any order; it lets a copy pass through a state in which the
// target holds poison; and a write of a counter that does not ask for the fence may overtake the copy before it. A call
// on a stream fails unless the context that the stream was made in is that of the calling thread.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kInvalid = 1;
constexpr int kInvalidContext = 201;
constexpr int kDevices = 2;
constexpr unsigned kNoFence = 1;  // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER

std::atomic<unsigned> longest_us{0};
std::atomic<int> fail_next{0};

void delay(std::mt19937& random) {
  unsigned longest = longest_us.load();
  if (longest) std::this_thread::sleep_for(std::chrono::microseconds(random() % (longest + 1)));
}

// A context is a number, one for each device; each thread has a stack of them.
thread_local std::vector<void*> contexts;
void* context_of(int device) { return reinterpret_cast<void*>(uintptr_t(device) + 8); }
void* current() { return contexts.empty() ? nullptr : contexts.back(); }

struct Stream {
  void* context = current();
  std::atomic<unsigned> calls{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool busy = false, ending = false;
  std::mt19937 random;
  std::thread thread;

  explicit Stream(unsigned seed) : random(seed), thread([this] { serve(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void run(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex);
    waiting.push_back(std::move(work));
    changed.notify_all();
  }
  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return waiting.empty() && !busy; });
  }
  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !waiting.empty(); });
      if (waiting.empty()) return;
      auto work = std::move(waiting.front());
      waiting.pop_front();
      busy = true;
      lock.unlock();
      delay(random);
      work();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct Event {
  void* context = current();
  std::atomic<unsigned> recorded{0}, reached{0};
};

std::atomic<uint32_t>* counter(unsigned long long address) {
  return reinterpret_cast<std::atomic<uint32_t>*>(address);
}

std::atomic<unsigned> streams{0};

// Puts work on a stream, as all calls do that name one.
int put(void* stream, std::function<void()> work) {
  auto* queue = static_cast<Stream*>(stream);
  if (!queue || queue->context != current()) return kInvalidContext;
  ++queue->calls;
  queue->run(std::move(work));
  return 0;
}

}  // namespace

extern "C" {

void fake_set_delay(unsigned us) { longest_us = us; }
void fake_fail_next(int code) { fail_next = code; }
// Calls that were put on a stream, and the device of the calling thread (-1: none).
unsigned fake_calls(void* stream) { return static_cast<Stream*>(stream)->calls.load(); }
int fake_device() { return current() ? int(reinterpret_cast<uintptr_t>(current())) - 8 : -1; }
// A kernel: runs on the stream.
void fake_launch(void* stream, void (*kernel)(void*), void* argument) {
  static_cast<Stream*>(stream)->run([=] { kernel(argument); });
}

int cuInit(unsigned) { return fail_next.exchange(0); }
int cuDeviceGet(int* device, int index) { return *device = index, index < kDevices ? 0 : kInvalid; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = context_of(device), 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(void* context) { return contexts.push_back(context), context ? 0 : kInvalid; }
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_FAKE", 0; }

int cuMemAlloc_v2(unsigned long long* memory, size_t bytes) {
  if (int failed = fail_next.exchange(0)) return failed;
  if (!current()) return kInvalidContext;
  void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(block, 0xA5, bytes);  // new memory holds anything
  *memory = reinterpret_cast<unsigned long long>(block);
  return 0;
}
int cuMemFree_v2(unsigned long long memory) { return std::free(reinterpret_cast<void*>(memory)), 0; }
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void* stream) {
  return put(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

int cuIpcGetMemHandle(void* handle, unsigned long long memory) {
  std::memset(handle, 0, 64);
  std::memcpy(handle, &memory, sizeof(memory));
  return 0;
}
struct Handle {
  char bytes[64];
};
int cuIpcOpenMemHandle_v2(unsigned long long* memory, Handle handle, unsigned) {
  std::memcpy(memory, handle.bytes, sizeof(*memory));
  return 0;
}
int cuIpcCloseMemHandle(unsigned long long) { return 0; }

int cuStreamCreate(void** stream, unsigned) {
  if (!current()) return kInvalidContext;
  return *stream = new Stream(++streams), 0;
}
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), 0; }
int cuStreamSynchronize(void* stream) {
  auto* queue = static_cast<Stream*>(stream);
  if (queue->context != current()) return kInvalidContext;
  ++queue->calls;
  return queue->synchronize(), 0;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
  auto* queue = static_cast<Stream*>(stream);
  return put(stream, [=] {
    std::memset(reinterpret_cast<void*>(to), 0xFF, bytes);
    delay(queue->random);
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  });
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  return put(stream, [=] {
    uint32_t value = counter(from)->load();  // counters are all that the scheduler reads
    std::memcpy(to, &value, bytes);
  });
}

int cuStreamWriteValue32_v2(void* stream, unsigned long long address, uint32_t value, unsigned flags) {
  if (flags & kNoFence) return counter(address)->store(value), 0;
  return put(stream, [=] { counter(address)->store(value); });
}
int cuStreamWaitValue32_v2(void* stream, unsigned long long address, uint32_t value, unsigned flags) {
  if (flags) return kInvalid;
  return put(stream, [=] {
    while (int32_t(counter(address)->load() - value) < 0) std::this_thread::sleep_for(std::chrono::microseconds(5));
  });
}

int cuEventCreate(void** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), 0; }
int cuEventRecord(void* event, void* stream) {
  auto* e = static_cast<Event*>(event);
  if (e->context != current()) return kInvalidContext;
  unsigned number = ++e->recorded;
  return put(stream, [=] { e->reached.store(number); });
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  auto* e = static_cast<Event*>(event);
  unsigned number = e->recorded.load();
  return put(stream, [=] {
    while (int32_t(e->reached.load() - number) < 0) std::this_thread::sleep_for(std::chrono::microseconds(5));
  });
}

}  // extern "C"
