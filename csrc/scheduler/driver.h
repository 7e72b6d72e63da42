// What the stream scheduler needs of a device: memory that other processes can open, streams, counters.
//
// Operations of one stream run in order. The null stream is the one that the caller computes on: for a device the
// stream given to `set_compute_stream`, for the host the calling thread itself, so that operations on it are over when
// the call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace wavecore {

// A failure of the exchange between processes; becomes `wavecore.errors.WavecoreError` in Python.
class WaveError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Counters are 32 bits and wrap: `reached` is the only way to compare them.
inline bool reached(uint32_t counter, uint32_t value) { return int32_t(counter - value) >= 0; }

// Counters lie this far apart, so that no two share a cache line or its neighbour.
constexpr size_t kFlagBytes = 128;

class Driver {
 public:
  using Stream = void*;

  virtual ~Driver() = default;
  virtual const char* name() const = 0;

  // Memory filled with zeros. `share` gives a text by which another process opens it.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  virtual std::string share(void* memory) = 0;
  virtual void* open(const std::string& handle) = 0;
  virtual void close(void* memory) = 0;

  virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual void copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void write_value(Stream stream, void* flag, uint32_t value) = 0;
  virtual void wait_value(Stream stream, void* flag, uint32_t value) = 0;
  // Work put on `stream` from now on begins after what is on the compute stream now.
  virtual void follow_compute(Stream stream) = 0;
  // Waits in the calling thread until the work on `stream` is over.
  virtual void synchronize(Stream stream) = 0;

  // Sets a counter at once, outside all streams.
  virtual void set_value(void* flag, uint32_t value) = 0;
  // The counter as the caller sees it now.
  virtual uint32_t value(void* flag) = 0;
  // Whether the caller knows the counter to have come that far.
  virtual bool reached_value(void* flag, uint32_t value) { return reached(this->value(flag), value); }
  // When the counter was set to `value`, in nanoseconds of the steady clock; 0 where it is not known.
  virtual int64_t written_at(void* flag, uint32_t value) = 0;
  // Whether operations on the null stream are over when the call returns.
  virtual bool computes_in_caller() const = 0;
  // Ends every wait of this process, now and later: host waits throw.
  virtual void cancel() = 0;
};

}  // namespace wavecore
