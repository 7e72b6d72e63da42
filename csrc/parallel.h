// Work split over threads, on the thread pool that PyTorch already has.
#pragma once

#include <cstdint>
#include <functional>

namespace wavecore {

// Calls body(begin, end) on disjoint ranges that cover [0, items), on up to `threads` threads, the calling one
// included. `cost` is the work of one item in numbers that an element-wise pass reads and writes; a thread joins for
// every kCostPerThread of it, so small work stays on the calling thread.
void parallel_for(int64_t items, double cost, int threads, const std::function<void(int64_t, int64_t)>& body);

// Library whose threads are used, for reports: the path of PyTorch's OpenMP runtime, or "std::thread".
const char* thread_library();

}  // namespace wavecore
