// Tests of the stream scheduler; meant to be built with the thread sanitizer. LIBRARY is the fake CUDA driver.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "scheduler/cuda_driver.h"
#include "scheduler/host_driver.h"
#include "wave.h"

using namespace wave;

namespace {

int failures = 0;

void expect(bool right, const char* what, const std::string& detail = "") {
  if (right) return;
  ++failures;
  std::fprintf(stderr, "FAILED %s %s\n", what, detail.c_str());
}

// The wave on threads of one process, each with a driver of its own on the memory of all.
long on_host(Options o, double link = 0) {
  HostDriver owner({});
  std::vector<char*> memory;
  for (int stage = 0; stage < o.stages; ++stage) memory.push_back(static_cast<char*>(owner.allocate(Layout{o}.size())));
  for (char* segment : memory)
    for (size_t flag = 0; flag < Layout{o}.flags(2, 0); flag += kFlagBytes) owner.set_value(segment + flag, o.first - 1);
  std::atomic<long> wrong{0};
  std::vector<std::thread> threads;
  for (int stage = 0; stage < o.stages; ++stage)
    threads.emplace_back([&, stage] {
      std::mt19937 random(unsigned(stage) + 1);
      auto driver = std::make_shared<HostDriver>(HostDriver::Options{0, link});
      run_stage(o, stage, driver, memory, {[](std::function<void()> work) { work(); }}, wrong, random);
    });
  for (auto& thread : threads) thread.join();
  return wrong;
}

void host_waves() {
  Options o;
  expect(on_host(o) == 0, "host, two generations");
  o.pages = o.generations = 1;
  expect(on_host(o) == 0, "host, one generation");
  o = {};
  o.stages = 5;
  o.delay_us = 200;
  o.rounds = 40;
  expect(on_host(o) == 0, "host, five stages with pauses");
  expect(on_host(o, 500) == 0, "host, over a slow link");
  o.first = 0xFFFFFFF0u;
  expect(on_host(o) == 0, "host, ticks that wrap");
}

void credits_are_needed() {
  Options o;
  o.delay_us = 2000;
  o.rounds = 30;
  o.generations = 1000;  // told that there are more pages than there are, it never waits for a credit
  expect(on_host(o) > 0, "without credits the checker finds a page that was overwritten");
}

void stress(int rounds) {
  Options o;
  o.rounds = rounds;
  o.stages = 5;
  o.layers = 2;
  o.delay_us = 30;
  expect(on_host(o) == 0, "stress");
}

void waits_end() {
  HostDriver::Options plain;
  auto driver = std::make_shared<HostDriver>(plain);
  auto* memory = static_cast<char*>(driver->allocate(4096));
  {
    Scheduler scheduler(driver, {1, 2, 0.3, false});
    int edge = scheduler.add_incoming("stage 3", memory);
    scheduler.begin(7, {}, {{edge, {}}});
    std::string said;
    try {
      scheduler.gate(0);
    } catch (const WaveError& error) {
      said = error.what();
    }
    expect(said == "expected stage 3 to send layer 0 of tick 7 within 0.3 s, it did not", "watchdog", said);
  }
  driver = std::make_shared<HostDriver>(plain);
  memory = static_cast<char*>(driver->allocate(4096));
  Scheduler scheduler(driver, {1, 2, 60, false});
  int edge = scheduler.add_incoming("stage 3", memory);
  scheduler.begin(7, {}, {{edge, {}}});
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    scheduler.cancel("rank 2 has ended");
    scheduler.cancel("a later reason");
  });
  std::string said;
  auto began = std::chrono::steady_clock::now();
  try {
    scheduler.gate(0);
  } catch (const WaveError& error) {
    said = error.what();
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  other.join();
  expect(said == "rank 2 has ended", "cancel", said);
  expect(seconds < 2, "cancel ends a wait soon");
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const WaveError& error) {
    return error.what();
  }
  return "no error";
}

// Copies that somebody else makes wait for the readers of two ticks before.
void claims_wait_for_credit() {
  auto driver = std::make_shared<HostDriver>(HostDriver::Options{});
  auto* memory = static_cast<char*>(driver->allocate(4096));
  Scheduler scheduler(driver, {1, 2, 0.3, false});
  int edge = scheduler.add_outgoing("stage 1", memory, memory + kFlagBytes);
  auto claim = [&](uint32_t tick) {
    scheduler.begin(tick, {{edge, {}}}, {});
    return error_of([&] { scheduler.claim(0); });
  };
  expect(claim(2) == "no error", "nobody has read anything yet");
  driver->set_value(memory + kFlagBytes, 1);
  expect(claim(3) == "no error", "tick 1 was read");
  std::string said = claim(4);
  expect(said == "expected stage 1 to read layer 0 of tick 2 within 0.3 s, it did not", "tick 2 was not", said);
}

// What would read or write memory that is not there, or watch without a pause.
void wrong_arguments() {
  auto driver = std::make_shared<HostDriver>(HostDriver::Options{});
  auto made = [&](std::shared_ptr<Driver> on, double timeout) {
    return error_of([&] { Scheduler scheduler(on, {2, 2, timeout, false}); });
  };
  expect(made(nullptr, 30) == "scheduler: expected a driver, got none", "no driver");
  for (double timeout : {0.0, -1.0, std::nan(""), HUGE_VAL})
    expect(made(driver, timeout).rfind("timeout: expected more than 0", 0) == 0, "timeout", made(driver, timeout));
  std::string huge = error_of([&] { driver->allocate(size_t(1) << 60); });
  expect(huge.rfind("shared memory: expected at most the ", 0) == 0, "more memory than there is", huge);
  auto* memory = static_cast<char*>(driver->allocate(8 * kFlagBytes));
  Scheduler scheduler(driver, {2, 2, 30, false});
  int out = scheduler.add_outgoing("stage 1", memory, memory + 2 * kFlagBytes);
  int in = scheduler.add_incoming("stage 2", memory + 4 * kFlagBytes);
  for (int edge : {-1, in, 2})
    expect(error_of([&] { scheduler.begin(1, {{edge, {}}}, {}); }) ==
               "edge: expected an outgoing one of the 2 added, got " + std::to_string(edge), "outgoing edge");
  for (int edge : {-1, out, 2})
    expect(error_of([&] { scheduler.begin(1, {}, {{edge, {}}}); }) ==
               "edge: expected an incoming one of the 2 added, got " + std::to_string(edge), "incoming edge");
  for (auto step : {&Scheduler::acquire, &Scheduler::claim, &Scheduler::publish, &Scheduler::drain, &Scheduler::gate,
                    &Scheduler::attended})
    for (int layer : {-1, 2})
      expect(error_of([&] { (scheduler.*step)(layer); }) == "layer: expected one from 0 to 1, got " + std::to_string(layer),
             "layer");
}

void memory_between_processes() {
  HostDriver owner({});
  auto* memory = static_cast<char*>(owner.allocate(8192));
  std::string handle = owner.share(memory);
  pid_t child = fork();
  if (!child) {
    HostDriver driver({});
    auto* opened = static_cast<char*>(driver.open(handle));
    std::strcpy(opened + 4096, "written by another process");
    driver.write_value(nullptr, opened, 5);
    _exit(0);
  }
  owner.wait_value(nullptr, memory, 5);
  expect(!std::strcmp(memory + 4096, "written by another process"), "memory is shared");
  waitpid(child, nullptr, 0);
  std::string said;
  try {
    owner.open("host " + std::to_string(child) + " 3 1 8192");
  } catch (const WaveError& error) {
    said = error.what();
  }
  expect(said.find("it is gone") != std::string::npos, "memory of a dead process", said);
  owner.free(memory);
  try {
    owner.open(handle);
    expect(false, "memory that was given back can be opened");
  } catch (const WaveError&) {
  }
}

// -- the CUDA driver on the fake device --------------------------------------------------

struct Fake {
  void (*set_delay)(unsigned);
  void (*fail_next)(int);
  void (*launch)(void*, void (*)(void*), void*);
  unsigned (*calls)(void*);
  int (*device)();
  int (*push)(void*);
  int (*pop)(void**);
};

long on_device(const Fake& fake, const char* library, Options o, bool dies = false, std::string* said = nullptr) {
  auto owner = std::make_shared<CudaDriver>(0, library);
  std::vector<char*> memory;
  for (int stage = 0; stage < o.stages; ++stage) memory.push_back(static_cast<char*>(owner->allocate(Layout{o}.size())));
  for (char* segment : memory)
    for (size_t flag = 0; flag < Layout{o}.flags(2, 0); flag += kFlagBytes)
      if (o.first != 1) owner->set_value(segment + flag, o.first - 1);
  std::atomic<long> wrong{0};
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int stage = 0; stage < o.stages; ++stage)
    threads.emplace_back([&, stage] {
      std::mt19937 random(unsigned(stage) + 1);
      auto driver = std::make_shared<CudaDriver>(0, library);
      void* stream = driver->create_stream();
      driver->set_compute_stream(stream);
      auto run = [&](std::function<void()> work) {
        auto* kept = new std::function<void()>(std::move(work));
        auto call = [](void* argument) {
          auto* function = static_cast<std::function<void()>*>(argument);
          (*function)();
          delete function;
        };
        fake.launch(stream, call, kept);
      };
      try {
        run_stage(o, stage, driver, memory, {run}, wrong, random,
                  [&](uint32_t tick) { return dies && stage == o.stages - 1 && tick == o.first + 5; });
      } catch (const WaveError& error) {
        std::lock_guard<std::mutex> lock(mutex);
        if (said && stage == 0) *said = error.what();
      }
      driver->synchronize(stream);
      driver->destroy_stream(stream);
    });
  for (auto& thread : threads) thread.join();
  for (char* segment : memory) owner->free(segment);
  return wrong;
}

Fake load(const char* library) {
  void* handle = dlopen(library, RTLD_NOW);
  if (!handle) throw std::runtime_error(dlerror());
  return {reinterpret_cast<void (*)(unsigned)>(dlsym(handle, "fake_set_delay")),
          reinterpret_cast<void (*)(int)>(dlsym(handle, "fake_fail_next")),
          reinterpret_cast<void (*)(void*, void (*)(void*), void*)>(dlsym(handle, "fake_launch")),
          reinterpret_cast<unsigned (*)(void*)>(dlsym(handle, "fake_calls")),
          reinterpret_cast<int (*)()>(dlsym(handle, "fake_device")),
          reinterpret_cast<int (*)(void*)>(dlsym(handle, "cuCtxPushCurrent_v2")),
          reinterpret_cast<int (*)(void**)>(dlsym(handle, "cuCtxPopCurrent_v2"))};
}

void device_without_credits(const char* library) {
  Fake fake = load(library);
  Options o;
  o.rounds = 30;
  o.layers = 3;
  o.delay_us = 2000;
  o.generations = 1000;
  fake.set_delay(600);
  expect(on_device(fake, library, o) > 0, "device, without credits");
}

// A wait in a stream is called off by the watchdog; the next call says why. What is under way then goes on without
// credits, into memory that nobody will use.
void device_that_loses_a_stage(const char* library) {
  Fake fake = load(library);
  Options o;
  o.layers = 3;
  o.rounds = 20;
  o.timeout = 0.5;
  std::string said;
  on_device(fake, library, o, true, &said);
  expect(said.find("within 0.5 s, it did not") != std::string::npos, "device, a stage that ends", said);
}

void device_waves(const char* library) {
  Fake fake = load(library);
  Options o;
  o.rounds = 12;
  o.layers = 3;
  fake.set_delay(60);
  expect(on_device(fake, library, o) == 0, "device");
  o.first = 0xFFFFFFFAu;
  expect(on_device(fake, library, o) == 0, "device, ticks that wrap");
  fake.set_delay(20);
  CudaDriver driver(0, library);
  fake.fail_next(2);
  try {
    driver.allocate(64);
    expect(false, "an error of the driver is passed on");
  } catch (const WaveError& error) {
    expect(!std::strcmp(error.what(), "cuMemAlloc: CUDA_ERROR_FAKE"), "name of an error", error.what());
  }
  std::string missing;
  try {
    CudaDriver none(0, "libcuda-that-is-not-there.so");
  } catch (const WaveError& error) {
    missing = error.what();
  }
  expect(missing.find("expected libcuda-that-is-not-there.so of an NVIDIA driver") != std::string::npos, "no driver",
         missing);
}

// -- which stream, and which device -----------------------------------------------------

// Everything that a driver of the second device does for a thread: the operations that name no stream go to `compute`.
void use(CudaDriver& driver, const Fake& fake, void* compute, const char* who) {
  int before = fake.device();
  void* side = driver.create_stream();
  auto* memory = static_cast<char*>(driver.allocate(2 * kFlagBytes));
  unsigned on_compute = fake.calls(compute), on_side = fake.calls(side);
  driver.write_value(nullptr, memory, 3);
  driver.wait_value(nullptr, memory, 3);
  driver.copy(nullptr, memory + kFlagBytes, memory, sizeof(uint32_t));
  driver.synchronize(nullptr);
  expect(fake.calls(compute) == on_compute + 4, "operations go to the compute stream", who);
  expect(fake.calls(side) == on_side, "and to no other", who);
  driver.follow_compute(side);
  expect(fake.calls(compute) == on_compute + 5 && fake.calls(side) == on_side + 1, "an edge follows the compute stream",
         who);
  driver.write_value(side, memory, 4);
  driver.synchronize(side);
  expect(fake.calls(compute) == on_compute + 5 && fake.calls(side) == on_side + 3, "a named stream is used", who);
  driver.set_value(memory, 9);
  expect(driver.value(memory) == 9, "a counter is set at once", who);
  driver.close(driver.open(driver.share(memory)));
  driver.free(memory);
  driver.destroy_stream(side);
  expect(fake.device() == before, "the caller's current device stays", who);
}

void streams_and_devices(const char* library) {
  Fake fake = load(library);
  CudaDriver driver(1, library);
  void *first = driver.create_stream(), *second = driver.create_stream(), *popped = nullptr;
  driver.set_compute_stream(first);
  expect(fake.device() == -1, "a driver leaves the current device as it was");
  try {
    use(driver, fake, first, "no device current");
    fake.push(reinterpret_cast<void*>(8));  // the context of the first device
    use(driver, fake, first, "another device current");
    driver.set_compute_stream(second);
    use(driver, fake, second, "another stream current");
    std::thread([&] { use(driver, fake, second, "in another thread"); }).join();
    fake.pop(&popped);
  } catch (const WaveError& error) {
    expect(false, "calls of a device that is not current", error.what());
  }
  driver.destroy_stream(first);
  driver.destroy_stream(second);
}

}  // namespace

// scheduler_test LIBRARY             all but the mutations
// scheduler_test LIBRARY mutations   without credits: the checker has to find overwritten pages
// scheduler_test LIBRARY stress N    N rounds with pauses on every edge
int main(int count, char** arguments) {
  if (count < 2) return 2;
  std::string what = count > 2 ? arguments[2] : "";
  if (what == "mutations") {
    credits_are_needed();
    device_without_credits(arguments[1]);
    device_that_loses_a_stage(arguments[1]);
  } else if (what == "stress") {
    stress(std::atoi(arguments[3]));
  } else {
    memory_between_processes();  // forks: before there are threads
    host_waves();
    waits_end();
    claims_wait_for_credit();
    wrong_arguments();
    streams_and_devices(arguments[1]);
    device_waves(arguments[1]);
  }
  if (!failures) std::puts("ok");
  return failures != 0;
}
