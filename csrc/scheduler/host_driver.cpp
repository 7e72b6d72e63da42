#include "host_driver.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <sstream>
#include <thread>

#include "host_stream.h"

namespace wavecore {
namespace {

using Clock = std::chrono::steady_clock;

// A polling wait keeps its core to itself this long.
constexpr int64_t kKeepNs = 20'000;

// A sleeping wait looks up this often whether it was cancelled.
constexpr long kSliceNs = 20'000'000;

// Two times of writing: a writer is at most two ticks ahead of the reader, so the one it looks at stays.
struct Flag {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
  std::atomic<int64_t> written_at[2];

  std::atomic<int64_t>& time_of(uint32_t tick) { return written_at[tick & 1]; }
};
static_assert(sizeof(Flag) <= kFlagBytes, "counters would overlap");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "counters are shared between processes");

Flag& flag_at(void* address) { return *static_cast<Flag*>(address); }

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

void publish(Flag& flag, uint32_t value, int64_t time) {
  flag.time_of(value).store(time, std::memory_order_relaxed);
  flag.value.store(value);
  // Sequentially consistent with the waiter's "I sleep" and its second look: one of the two sees the other.
  if (flag.sleepers.load() != 0) syscall(SYS_futex, &flag.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Whether the counter is there; over a modelled link it counts only from its time of writing on.
bool arrived(Flag& flag, uint32_t value) {
  uint32_t seen = flag.value.load(std::memory_order_acquire);
  return reached(seen, value) && (seen != value || flag.time_of(value).load(std::memory_order_relaxed) <= now());
}

std::string system_error(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

HostDriver::HostDriver(Options options) : options_(options) {}

HostDriver::~HostDriver() {
  while (!mappings_.empty()) unmap(mappings_.begin()->first);
}

void* HostDriver::map(int file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw WaveError(system_error("shared memory of " + std::to_string(bytes) + " bytes"));
  return memory;
}

void* HostDriver::allocate(size_t bytes) {
  // Asked for more than there is, Linux would end processes to make room rather than refuse.
  size_t all = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  if (bytes > all)
    throw WaveError("shared memory: expected at most the " + std::to_string(all) + " bytes of this machine, got " +
                    std::to_string(bytes));
  // Memory without a name: it goes with the last process that has it, however those end.
  int file = memfd_create("wavecore", MFD_CLOEXEC);
  if (file < 0) throw WaveError(system_error("shared memory"));
  // Reserves the memory, so that too little of it is an error here and not a signal at the first write.
  int failed = posix_fallocate(file, 0, off_t(bytes));
  if (failed) {
    ::close(file);
    errno = failed;
    throw WaveError(system_error("shared memory: expected " + std::to_string(bytes) + " bytes, got none"));
  }
  void* memory;
  try {
    memory = map(file, bytes);
  } catch (...) {
    ::close(file);
    throw;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  mappings_[memory] = {bytes, file};
  return memory;
}

std::string HostDriver::share(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = mappings_.find(memory);
  if (found == mappings_.end() || found->second.file < 0) throw WaveError("share: expected memory of this process");
  struct stat status;
  if (fstat(found->second.file, &status)) throw WaveError(system_error("share"));
  std::ostringstream text;
  text << "host " << getpid() << ' ' << found->second.file << ' ' << status.st_ino << ' ' << found->second.bytes;
  return text.str();
}

void* HostDriver::open(const std::string& handle) {
  std::istringstream text(handle);
  std::string kind;
  long pid = 0;
  int number = 0;
  unsigned long inode = 0;
  size_t bytes = 0;
  if (!(text >> kind >> pid >> number >> inode >> bytes) || kind != "host")
    throw WaveError("shared memory: expected a handle of a host process, got '" + handle + "'");
  std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status;
  // Process and file numbers are used again; the inode tells whether it is still the same memory.
  if (file < 0 || fstat(file, &status) || status.st_ino != inode || size_t(status.st_size) != bytes) {
    if (file >= 0) ::close(file);
    throw WaveError("shared memory of process " + std::to_string(pid) + ": it is gone, since that process has ended");
  }
  void* memory;
  try {
    memory = map(file, bytes);
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
  std::lock_guard<std::mutex> lock(mutex_);
  mappings_[memory] = {bytes, -1};
  return memory;
}

void HostDriver::unmap(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = mappings_.find(memory);
  if (found == mappings_.end()) throw WaveError("memory: expected memory that was allocated or opened here");
  munmap(memory, found->second.bytes);
  if (found->second.file >= 0) ::close(found->second.file);
  mappings_.erase(found);
}

void HostDriver::free(void* memory) { unmap(memory); }
void HostDriver::close(void* memory) { unmap(memory); }

Driver::Stream HostDriver::create_stream() { return new HostStream(*this); }
void HostDriver::destroy_stream(Stream stream) { delete static_cast<HostStream*>(stream); }

void HostDriver::copy(Stream stream, void* to, const void* from, size_t bytes) {
  if (!stream) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* queue = static_cast<HostStream*>(stream);
  int64_t time = options_.link_bytes_per_us > 0 ? int64_t(1e3 * double(bytes) / options_.link_bytes_per_us) : 0;
  queue->run([=] {
    std::memcpy(to, from, bytes);
    if (time) queue->busy_until = std::max(queue->busy_until, now()) + time;
  });
}

void HostDriver::write_value(Stream stream, void* flag, uint32_t value) {
  if (!stream) return publish(flag_at(flag), value, now());
  auto* queue = static_cast<HostStream*>(stream);
  queue->run([=] { publish(flag_at(flag), value, std::max(queue->busy_until, now())); });
}

void HostDriver::wait_value(Stream stream, void* flag, uint32_t value) {
  if (stream) return static_cast<HostStream*>(stream)->wait(flag, value);
  if (!wait(flag, value, options_.spin_ns)) throw WaveError("cancelled");
}

bool HostDriver::wait(void* address, uint32_t value, int64_t spin_ns) {
  Flag& flag = flag_at(address);
  if (arrived(flag, value)) return true;
  const int64_t began = spin_ns > 0 ? now() : 0;
  for (int64_t waited = 0; waited < spin_ns; waited = now() - began) {
    for (int i = 0; i < 32; ++i) {
      if (reached(flag.value.load(std::memory_order_acquire), value)) break;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (arrived(flag, value)) return true;
    if (cancelled()) return false;
    // Whoever else has work for this core does it meanwhile. The core itself never goes idle: waking an idle one,
    // above all a virtual one, takes longer than most waits.
    if (waited > kKeepNs) sched_yield();
  }
  const struct timespec slice = {0, kSliceNs};
  while (!cancelled()) {
    flag.sleepers.fetch_add(1);
    uint32_t seen = flag.value.load();
    if (!reached(seen, value)) syscall(SYS_futex, &flag.value, FUTEX_WAIT, seen, &slice, nullptr, 0);
    flag.sleepers.fetch_sub(1);
    if (!reached(flag.value.load(std::memory_order_acquire), value)) continue;
    int64_t left = arrived(flag, value) ? 0 : flag.time_of(value).load(std::memory_order_relaxed) - now();
    if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
    return true;
  }
  return false;
}

void HostDriver::synchronize(Stream stream) {
  if (stream) static_cast<HostStream*>(stream)->synchronize();
}

void HostDriver::set_value(void* flag, uint32_t value) { publish(flag_at(flag), value, now()); }
uint32_t HostDriver::value(void* flag) { return flag_at(flag).value.load(std::memory_order_acquire); }
bool HostDriver::reached_value(void* flag, uint32_t value) { return arrived(flag_at(flag), value); }
int64_t HostDriver::written_at(void* flag, uint32_t value) {
  return flag_at(flag).time_of(value).load(std::memory_order_relaxed);
}

}  // namespace wavecore
