#include "parallel.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace wavecore {
namespace {

// Waking a thread and waiting for it costs some microseconds, about what this many numbers take.
constexpr double kCostPerThread = 32768;
// Ranges handed out to each thread, so that a late or slow one does not hold up the rest.
constexpr int64_t kRangesPerThread = 8;

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// PyTorch's OpenMP runtime, when it is loaded. A second runtime, or a pool of our own, would leave two sets of
// threads spinning on the same cores; PyTorch ships its runtime under its own path, so it is looked up among the
// loaded libraries instead of being linked.
struct OpenMp {
  std::string path;
  GompParallel parallel = nullptr;
};

#if defined(__linux__)
int collect_openmp(dl_phdr_info* info, size_t, void* out) {
  std::string path = info->dlpi_name ? info->dlpi_name : "";
  std::string name = path.substr(path.rfind('/') + 1);
  for (const char* runtime : {"libgomp", "libiomp5", "libomp"})
    if (name.rfind(runtime, 0) == 0) static_cast<std::vector<std::string>*>(out)->push_back(path);
  return 0;
}
#endif

OpenMp find_openmp() {
  OpenMp found;
#if defined(__linux__)
  std::vector<std::string> paths;
  dl_iterate_phdr(collect_openmp, &paths);
  // Other packages may have brought a runtime of their own: PyTorch's comes first.
  std::stable_partition(paths.begin(), paths.end(),
                        [](const std::string& path) { return path.find("/torch") != std::string::npos; });
  for (const std::string& path : paths) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!handle) continue;
    if (void* symbol = dlsym(handle, "GOMP_parallel")) {
      found.path = path;
      found.parallel = reinterpret_cast<GompParallel>(symbol);
      break;
    }
    dlclose(handle);
  }
#endif
  return found;
}

const OpenMp& openmp() {
  static const OpenMp runtime = find_openmp();
  return runtime;
}

struct Job {
  const std::function<void(int64_t, int64_t)>& body;
  int64_t items;
  int64_t grain;
  std::atomic<int64_t> next{0};

  static void run(void* data) {
    Job& job = *static_cast<Job*>(data);
    for (;;) {
      int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
      if (begin >= job.items) return;
      job.body(begin, std::min(begin + job.grain, job.items));
    }
  }
};

}  // namespace

void parallel_for(int64_t items, double cost, int threads, const std::function<void(int64_t, int64_t)>& body) {
  if (items <= 0) return;
  double worth = std::min(double(items) * cost / kCostPerThread, double(items));
  int team = static_cast<int>(std::min(double(threads), worth));
  if (team <= 1) return body(0, items);
  int64_t grain = std::max<int64_t>(1, items / (int64_t(team) * kRangesPerThread));
  Job job{body, items, grain};
  if (openmp().parallel) return openmp().parallel(Job::run, &job, static_cast<unsigned>(team), 0);
  std::vector<std::thread> helpers;
  for (int i = 1; i < team; ++i) helpers.emplace_back(Job::run, &job);
  Job::run(&job);
  for (std::thread& helper : helpers) helper.join();
}

const char* thread_library() { return openmp().parallel ? openmp().path.c_str() : "std::thread"; }

}  // namespace wavecore
