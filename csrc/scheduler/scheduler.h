// The stream scheduler of one rank: publishes keys and values layer by layer, and holds attention until they are there.
//
// An edge goes from a stage of a rank that writes to a rank that reads. For each layer it has a counter `ready`, in the
// memory of the reader, which is set to the tick of a round once that round's data is written. For each layer a rank
// also has a counter `credit` in the memory of every other one, set once it has read all that it reads in a tick. With
// G generations of pages, data of tick T goes to pages that were last read in tick T - G, so it is copied only after
// that credit has come. Every rank goes through every tick from 1 on, and a counter begins at the tick before the first
// one, so the credits of ticks that never were are there.
//
// Ticks are 32 bits and wrap. Within a tick a rank runs its stages one after the other, each with a `begin` of its own
// that says which edges are at work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"

namespace wavecore {

// The same bytes of every layer: addresses move on by a stride from layer to layer.
struct LayerCopy {
  const char* from;
  int64_t from_stride;
  char* to;
  int64_t to_stride;
  size_t bytes;
};

struct OutgoingRound {
  int edge;
  std::vector<LayerCopy> copies;
};

struct IncomingRound {
  int edge;
  std::vector<LayerCopy> unpack;  // from where it arrived to where it is read; empty when that is the same
};

enum class Step : uint8_t { publish, wait, attend };

// What happened, in nanoseconds of the steady clock. For a wait: how long it stood still, and when the data came.
struct Record {
  Step step;
  int edge;  // -1 for attend
  int layer;
  uint32_t tick;
  int64_t begin_ns;
  int64_t end_ns;
  int64_t written_ns;
};

class Scheduler {
 public:
  struct Options {
    int layers;
    int generations = 2;
    double timeout_seconds = 30;
    bool record = false;
  };

  Scheduler(std::shared_ptr<Driver> driver, Options options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Counters are those of layer 0, the others follow every kFlagBytes.
  int add_outgoing(const std::string& to, char* ready, char* credit);
  int add_incoming(const std::string& from, char* ready);
  // A counter of the layers that were read here, in the memory of a rank that writes here.
  void add_credit(char* credit);

  // Begins a stage's round: what is at work in it. The `last` of a tick gives the credits back.
  void begin(uint32_t tick, std::vector<OutgoingRound> outgoing, std::vector<IncomingRound> incoming, bool last = true);
  // Before a layer's own pages are written: waits until the copies of tick T - G out of them are over.
  void acquire(int layer);
  // Waits until the readers' credit is there: for copies that are made before `publish`, by somebody else.
  void claim(int layer);
  // After they are written: sends them on, as soon as the readers' credit is there.
  void publish(int layer);
  // Waits until the copies of this tick are over: for an exchange that nothing overlaps.
  void drain(int layer);
  // Before attention: waits for what it reads.
  void gate(int layer);
  // After attention: gives the credits back, in the last round of the tick.
  void attended(int layer);

  // Waits in the calling thread until all that was begun is over. The watchdog sees to it that this ends.
  void synchronize();

  // Ends all waits; every later call throws an error with this reason. The first reason stays.
  void cancel(const std::string& reason);
  std::vector<Record> take_records();
  // Bytes that were given to copies so far.
  uint64_t bytes_sent() const { return bytes_sent_.load(); }

 private:
  struct Edge {
    std::string peer;
    char* ready;
    char* credit = nullptr;  // outgoing
    Driver::Stream stream = nullptr;
    char* left = nullptr;  // outgoing: counters of the copies that are over, one a layer
    std::deque<uint32_t> sent;  // outgoing: the latest ticks that it was at work in, this one included
    void* flag(char* base, int layer) const { return base + size_t(layer) * kFlagBytes; }
  };
  struct Wait {
    uint32_t serial;
    int edge;
    int layer;
    uint32_t tick;
    const char* what;
  };

  void check() const;
  void check(int layer) const;
  const Edge& edge_of(int edge, bool outgoing) const;
  void wait_in_compute(int edge, int layer, uint32_t value, void* flag, const char* what);
  void watch();
  void cancel_locked(const std::string& reason);
  void note(Step step, int edge, int layer, int64_t begin, int64_t end, int64_t written);

  std::shared_ptr<Driver> driver_;
  const Options options_;
  std::vector<std::unique_ptr<Edge>> edges_;
  char* progress_ = nullptr;  // counter of the waits that the compute stream has passed, on a device

  std::vector<char*> credits_;
  uint32_t tick_ = 0;
  bool last_ = true;
  std::vector<OutgoingRound> outgoing_;
  std::vector<IncomingRound> incoming_;
  std::atomic<uint64_t> bytes_sent_{0};

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::string reason_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> ending_{false};
  std::deque<Wait> waits_;  // not passed yet, as far as is known
  uint32_t serial_ = 0;
  int64_t oldest_since_ = 0;  // when the first of them became the first
  std::vector<Record> records_;
  std::thread watchdog_;
};

}  // namespace wavecore
