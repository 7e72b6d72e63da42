#include "scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace wavecore {
namespace {

using Clock = std::chrono::steady_clock;

// The watchdog looks up this many times within a timeout, and this often at least.
constexpr int kLooks = 20;
constexpr int64_t kWatchNs = 1'000'000'000;

// Seconds whose nanoseconds, added to a time, are far from the end of 64 bits.
constexpr double kLongestTimeout = 1e9;

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

}  // namespace

Scheduler::Scheduler(std::shared_ptr<Driver> driver, Options options) : driver_(std::move(driver)), options_(options) {
  if (!driver_) throw WaveError("scheduler: expected a driver, got none");
  if (options.layers < 1 || options.generations < 1)
    throw WaveError("scheduler: expected at least one layer and one generation");
  if (!(options.timeout_seconds > 0 && options.timeout_seconds <= kLongestTimeout))
    throw WaveError("timeout: expected more than 0 and at most " + std::to_string(int64_t(kLongestTimeout)) +
                    " s, got " + std::to_string(options.timeout_seconds));
  if (!driver_->computes_in_caller()) progress_ = static_cast<char*>(driver_->allocate(kFlagBytes));
  watchdog_ = std::thread(&Scheduler::watch, this);
}

Scheduler::~Scheduler() {
  if (!driver_->computes_in_caller()) {
    try {
      synchronize();  // a device may still be at work on counters that are freed here
    } catch (const WaveError&) {  // whoever cares has been told before
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_.store(true);
    driver_->cancel();
  }
  changed_.notify_all();
  watchdog_.join();
  for (auto& edge : edges_) {
    if (edge->stream) driver_->destroy_stream(edge->stream);
    if (edge->left) driver_->free(edge->left);
  }
  if (progress_) driver_->free(progress_);
}

void Scheduler::synchronize() {
  for (size_t i = 0; i < edges_.size(); ++i) {
    Edge& edge = *edges_[i];
    for (int layer = 0; layer < options_.layers && !edge.sent.empty(); ++layer)
      wait_in_compute(int(i), layer, edge.sent.back(), edge.flag(edge.left, layer), "to take");
  }
  driver_->synchronize(nullptr);
  for (auto& edge : edges_)
    if (edge->stream) driver_->synchronize(edge->stream);
  check();
}

int Scheduler::add_outgoing(const std::string& to, char* ready, char* credit) {
  auto edge = std::make_unique<Edge>();
  edge->peer = to;
  edge->ready = ready;
  edge->credit = credit;
  edge->left = static_cast<char*>(driver_->allocate(size_t(options_.layers) * kFlagBytes));
  edge->stream = driver_->create_stream();
  edges_.push_back(std::move(edge));
  return int(edges_.size()) - 1;
}

int Scheduler::add_incoming(const std::string& from, char* ready) {
  auto edge = std::make_unique<Edge>();
  edge->peer = from;
  edge->ready = ready;
  edges_.push_back(std::move(edge));
  return int(edges_.size()) - 1;
}

void Scheduler::add_credit(char* credit) { credits_.push_back(credit); }

const Scheduler::Edge& Scheduler::edge_of(int edge, bool outgoing) const {
  const Edge* found = edge < 0 || size_t(edge) >= edges_.size() ? nullptr : edges_[size_t(edge)].get();
  if (!found || (found->left != nullptr) != outgoing)
    throw WaveError("edge: expected an " + std::string(outgoing ? "outgoing" : "incoming") + " one of the " +
                    std::to_string(edges_.size()) + " added, got " + std::to_string(edge));
  return *found;
}

void Scheduler::check(int layer) const {
  if (layer < 0 || layer >= options_.layers)
    throw WaveError("layer: expected one from 0 to " + std::to_string(options_.layers - 1) + ", got " +
                    std::to_string(layer));
  check();
}

void Scheduler::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  throw WaveError(reason_);
}

void Scheduler::begin(uint32_t tick, std::vector<OutgoingRound> outgoing, std::vector<IncomingRound> incoming,
                      bool last) {
  check();
  for (const OutgoingRound& round : outgoing) edge_of(round.edge, true);
  for (const IncomingRound& round : incoming) edge_of(round.edge, false);
  tick_ = tick;
  last_ = last;
  outgoing_ = std::move(outgoing);
  incoming_ = std::move(incoming);
  for (const OutgoingRound& round : outgoing_) {
    Edge& edge = *edges_[size_t(round.edge)];
    if (edge.sent.empty())  // the counters of the copies begin where the ticks do
      for (int layer = 0; layer < options_.layers; ++layer) driver_->set_value(edge.flag(edge.left, layer), tick - 1);
    edge.sent.push_back(tick);
    if (edge.sent.size() > size_t(options_.generations) + 1) edge.sent.pop_front();
  }
}

void Scheduler::acquire(int layer) {
  check(layer);
  for (size_t i = 0; i < edges_.size(); ++i) {
    Edge& edge = *edges_[i];
    // The latest tick in which this edge was at work and whose pages are written anew now.
    for (auto sent = edge.sent.rbegin(); sent != edge.sent.rend(); ++sent) {
      if (!reached(tick_ - uint32_t(options_.generations), *sent)) continue;
      wait_in_compute(int(i), layer, *sent, edge.flag(edge.left, layer), "to take");
      break;
    }
  }
}

void Scheduler::claim(int layer) {
  check(layer);
  for (const OutgoingRound& round : outgoing_) {
    Edge& edge = *edges_[size_t(round.edge)];
    wait_in_compute(round.edge, layer, tick_ - uint32_t(options_.generations), edge.flag(edge.credit, layer), "to read");
  }
}

void Scheduler::publish(int layer) {
  check(layer);
  for (const OutgoingRound& round : outgoing_) {
    Edge& edge = *edges_[size_t(round.edge)];
    int64_t began = options_.record ? now() : 0;
    driver_->follow_compute(edge.stream);
    driver_->wait_value(edge.stream, edge.flag(edge.credit, layer), tick_ - uint32_t(options_.generations));
    uint64_t bytes = 0;
    for (const LayerCopy& copy : round.copies) {
      driver_->copy(edge.stream, copy.to + layer * copy.to_stride, copy.from + layer * copy.from_stride, copy.bytes);
      bytes += copy.bytes;
    }
    driver_->write_value(edge.stream, edge.flag(edge.ready, layer), tick_);
    driver_->write_value(edge.stream, edge.flag(edge.left, layer), tick_);
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    if (options_.record) note(Step::publish, round.edge, layer, began, now(), 0);
  }
}

void Scheduler::drain(int layer) {
  check(layer);
  for (const OutgoingRound& round : outgoing_) {
    Edge& edge = *edges_[size_t(round.edge)];
    wait_in_compute(round.edge, layer, tick_, edge.flag(edge.left, layer), "to take");
  }
}

void Scheduler::gate(int layer) {
  check(layer);
  int64_t began = options_.record ? now() : 0;
  for (const IncomingRound& round : incoming_) {
    Edge& edge = *edges_[size_t(round.edge)];
    void* flag = edge.flag(edge.ready, layer);
    wait_in_compute(round.edge, layer, tick_, flag, "to send");
    if (options_.record) note(Step::wait, round.edge, layer, began, now(), driver_->written_at(flag, tick_));
    for (const LayerCopy& copy : round.unpack)
      driver_->copy(nullptr, copy.to + layer * copy.to_stride, copy.from + layer * copy.from_stride, copy.bytes);
  }
  if (options_.record) note(Step::attend, -1, layer, now(), 0, 0);
}

void Scheduler::attended(int layer) {
  check(layer);
  // To every rank that may write here, at work in this tick or not: its pages of a later tick may be any of these.
  if (last_) {
    // Others may then write to any page of this tick, so also to those that copies are made of.
    for (size_t i = 0; i < edges_.size(); ++i)
      if (!edges_[i]->sent.empty() && edges_[i]->sent.back() == tick_)
        wait_in_compute(int(i), layer, tick_, edges_[i]->flag(edges_[i]->left, layer), "to take");
    for (char* credit : credits_) driver_->write_value(nullptr, credit + size_t(layer) * kFlagBytes, tick_);
  }
  if (options_.record) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!records_.empty() && records_.back().step == Step::attend) records_.back().end_ns = now();
  }
}

void Scheduler::wait_in_compute(int edge, int layer, uint32_t value, void* flag, const char* what) {
  bool in_caller = driver_->computes_in_caller();
  if (in_caller && driver_->reached_value(flag, value)) return;
  uint32_t serial;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waits_.empty()) oldest_since_ = now();
    serial = ++serial_;
    waits_.push_back({serial, edge, layer, value, what});
  }
  try {
    driver_->wait_value(nullptr, flag, value);
  } catch (const WaveError&) {
    check();  // the reason why it was cancelled says more
    throw;
  }
  if (in_caller) {
    std::lock_guard<std::mutex> lock(mutex_);
    waits_.pop_back();
  } else {
    driver_->write_value(nullptr, progress_, serial);
  }
}

void Scheduler::watch() {
  const int64_t limit = int64_t(options_.timeout_seconds * 1e9);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_.load()) {
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(limit / kLooks, kWatchNs)));
    if (waits_.empty() || failed_.load()) continue;
    if (progress_) {
      lock.unlock();
      uint32_t passed = driver_->value(progress_);
      lock.lock();
      bool moved = false;
      for (; !waits_.empty() && reached(passed, waits_.front().serial); moved = true) waits_.pop_front();
      if (moved) oldest_since_ = now();
      if (waits_.empty()) continue;
    }
    if (now() - oldest_since_ <= limit) continue;
    const Wait& wait = waits_.front();
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", options_.timeout_seconds);
    cancel_locked("expected " + edges_[size_t(wait.edge)]->peer + " " + wait.what + " layer " +
                  std::to_string(wait.layer) + " of tick " + std::to_string(wait.tick) + " within " + seconds +
                  " s, it did not");
  }
}

void Scheduler::cancel(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  cancel_locked(reason);
}

void Scheduler::cancel_locked(const std::string& reason) {
  if (failed_.load()) return;
  reason_ = reason;
  failed_.store(true, std::memory_order_release);
  driver_->cancel();
  if (driver_->computes_in_caller()) return;
  // A wait in a device's stream cannot be called off: its counter is set to what it waits for.
  for (auto& edge : edges_)
    for (int layer = 0; layer < options_.layers; ++layer)
      for (char* base : {edge->left ? edge->credit : edge->ready, edge->left})
        if (base) driver_->set_value(edge->flag(base, layer), tick_ + (1u << 30));
}

std::vector<Record> Scheduler::take_records() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Record> taken;
  taken.swap(records_);
  return taken;
}

void Scheduler::note(Step step, int edge, int layer, int64_t begin, int64_t end, int64_t written) {
  std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back({step, edge, layer, tick_, begin, end, written});
}

}  // namespace wavecore
