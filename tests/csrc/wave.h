// A wave of stages on the stream scheduler, with a checker in place of attention: each page holds numbers that say who
// wrote it in which tick, and a stage that reads anything else counts it as a torn or stale page.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"

namespace wave {

using namespace wavecore;

struct Options {
  int stages = 3;
  int layers = 4;
  int rounds = 100;
  int pages = 2;        // generations of pages that there are
  int generations = 2;  // generations that the scheduler is told of
  int words = 64;       // 64-bit words of a page
  uint32_t first = 1;
  unsigned delay_us = 0;  // longest pause of a stage before and while it reads
  double timeout = 20;
};

using Word = std::atomic<uint64_t>;

// Memory of a stage: counters, then pages [pages][source][layers][words], then its own page [pages][layers][words].
struct Layout {
  Options o;
  size_t flags(int block, int peer) const { return size_t(block * o.stages + peer) * size_t(o.layers) * kFlagBytes; }
  size_t page(uint32_t tick, int source, int layer) const {
    size_t generation = tick % uint32_t(o.pages);
    return flags(2, 0) + ((generation * size_t(o.stages) + size_t(source)) * size_t(o.layers) + size_t(layer)) * bytes();
  }
  size_t bytes() const { return size_t(o.words) * sizeof(uint64_t); }
  size_t size() const { return flags(2, 0) + size_t(o.pages * o.stages * o.layers) * bytes(); }
};

inline uint64_t stamp(int stage, uint32_t tick, int layer) {
  return (uint64_t(tick) << 16) | uint64_t(stage << 8) | uint64_t(layer);
}

// What a stage does with pages: on the host at once, on a device in the order of its stream.
struct Compute {
  std::function<void(std::function<void()>)> run;
};

// Runs one stage through all rounds; returns how many pages were not what they should be.
inline void run_stage(const Options& o, int stage, std::shared_ptr<Driver> driver, const std::vector<char*>& memory,
                      const Compute& compute, std::atomic<long>& wrong, std::mt19937& random,
                      std::function<bool(uint32_t)> dies = nullptr) {
  Layout layout{o};
  Scheduler scheduler(driver, {o.layers, o.generations, o.timeout, false});
  std::vector<int> out(size_t(o.stages), -1), in(size_t(o.stages), -1);
  for (int other = 0; other < stage; ++other)
    out[size_t(other)] = scheduler.add_outgoing("stage " + std::to_string(other),
                                                memory[size_t(other)] + layout.flags(0, stage),
                                                memory[size_t(stage)] + layout.flags(1, other));
  for (int other = stage + 1; other < o.stages; ++other)
    in[size_t(other)] =
        scheduler.add_incoming("stage " + std::to_string(other), memory[size_t(stage)] + layout.flags(0, other));
  for (int other = stage + 1; other < o.stages; ++other)
    scheduler.add_credit(memory[size_t(other)] + layout.flags(1, stage));
  char* here = memory[size_t(stage)];
  auto pause = [&] {
    if (o.delay_us && random() % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % (o.delay_us + 1)));
  };
  for (int round = 0; round < o.rounds; ++round) {
    uint32_t tick = o.first + uint32_t(round);
    if (dies && dies(tick)) return;
    std::vector<OutgoingRound> outgoing;
    std::vector<IncomingRound> incoming;
    int64_t stride = int64_t(layout.bytes());
    for (int other = 0; other < stage; ++other) {
      LayerCopy copy{here + layout.page(tick, stage, 0), stride, memory[size_t(other)] + layout.page(tick, stage, 0),
                     stride, layout.bytes()};
      outgoing.push_back({out[size_t(other)], {copy}});
    }
    for (int other = stage + 1; other < o.stages; ++other) incoming.push_back({in[size_t(other)], {}});
    scheduler.begin(tick, std::move(outgoing), std::move(incoming));
    for (int layer = 0; layer < o.layers; ++layer) {
      scheduler.acquire(layer);
      compute.run([=] {
        auto* own = reinterpret_cast<Word*>(here + Layout{o}.page(tick, stage, layer));
        for (int i = 0; i < o.words; ++i) own[i].store(stamp(stage, tick, layer), std::memory_order_relaxed);
      });
      scheduler.publish(layer);
      pause();
      scheduler.gate(layer);
      unsigned long_read = o.delay_us ? unsigned(random() % (o.delay_us + 1)) : 0;
      compute.run([=, &wrong] {
        for (int other = stage + 1; other < o.stages; ++other) {
          auto* page = reinterpret_cast<Word*>(here + Layout{o}.page(tick, other, layer));
          bool right = true;
          for (int i = 0; i < o.words; ++i) {
            right &= page[i].load(std::memory_order_relaxed) == stamp(other, tick, layer);
            if (i == o.words / 2 && long_read) std::this_thread::sleep_for(std::chrono::microseconds(long_read));
          }
          if (!right) ++wrong;
        }
      });
      scheduler.attended(layer);
    }
  }
  scheduler.synchronize();
}

}  // namespace wave
