#include "bindings.h"

#include <pybind11/stl.h>

#include "cuda_driver.h"
#include "host_driver.h"
#include "scheduler.h"

namespace wavecore {
namespace {

namespace py = pybind11;

// An address as Python holds it.
template <typename T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

uintptr_t number(void* address) { return reinterpret_cast<uintptr_t>(address); }

using Copies = std::vector<std::tuple<uintptr_t, int64_t, uintptr_t, int64_t, size_t>>;

std::vector<LayerCopy> layer_copies(const Copies& copies) {
  std::vector<LayerCopy> result;
  for (const auto& [from, from_stride, to, to_stride, bytes] : copies)
    result.push_back({pointer<const char>(from), from_stride, pointer<char>(to), to_stride, bytes});
  return result;
}

void begin(Scheduler& scheduler, uint32_t tick, const std::vector<std::tuple<int, Copies>>& outgoing,
           const std::vector<std::tuple<int, Copies>>& incoming, bool last) {
  std::vector<OutgoingRound> out;
  for (const auto& [edge, copies] : outgoing) out.push_back({edge, layer_copies(copies)});
  std::vector<IncomingRound> in;
  for (const auto& [edge, copies] : incoming) in.push_back({edge, layer_copies(copies)});
  py::gil_scoped_release release;
  scheduler.begin(tick, std::move(out), std::move(in), last);
}

py::list records(Scheduler& scheduler) {
  static const char* const names[] = {"publish", "wait", "attend"};
  py::list result;
  for (const Record& r : scheduler.take_records())
    result.append(py::make_tuple(names[int(r.step)], r.edge, r.layer, r.tick, double(r.begin_ns) * 1e-9,
                                 double(r.end_ns) * 1e-9, double(r.written_ns) * 1e-9));
  return result;
}

}  // namespace

void bind_scheduler(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const WaveError& error) {
      py::object type = py::module_::import("wavecore.errors").attr("WavecoreError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });

  module.attr("FLAG_BYTES") = kFlagBytes;
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  // Memory, counters and streams are addresses. Sizes and strides are bytes.
  py::class_<Driver, std::shared_ptr<Driver>>(module, "Driver", "Memory, streams and counters of a device.")
      .def_property_readonly("name", &Driver::name)
      .def(
          "allocate", [](Driver& driver, size_t bytes) { return number(driver.allocate(bytes)); }, py::arg("bytes"),
          "Memory that other processes can open, all zero; returns its address.")
      .def(
          "free", [](Driver& driver, uintptr_t memory) { driver.free(pointer(memory)); }, py::arg("memory"),
          "Give memory back.")
      .def(
          "share", [](Driver& driver, uintptr_t memory) { return py::bytes(driver.share(pointer(memory))); },
          py::arg("memory"), "Handle of memory, for `open` in another process.")
      .def(
          "open", [](Driver& driver, const std::string& handle) { return number(driver.open(handle)); },
          py::arg("handle"), "Address, here, of memory that another process shares.")
      .def(
          "close", [](Driver& driver, uintptr_t memory) { driver.close(pointer(memory)); }, py::arg("memory"),
          "Be done with memory that was opened.")
      .def(
          "value", [](Driver& driver, uintptr_t flag) { return driver.value(pointer(flag)); }, py::arg("flag"),
          "A counter as it is now.")
      .def(
          "set_value",
          [](Driver& driver, uintptr_t flag, uint32_t value) { driver.set_value(pointer(flag), value); },
          py::arg("flag"), py::arg("value"), "Set a counter, at once.")
      .def(
          "wait_value",
          [](Driver& driver, uintptr_t flag, uint32_t value) { driver.wait_value(nullptr, pointer(flag), value); },
          Unlocked(), py::arg("flag"), py::arg("value"), "Wait, as the layers do, until a counter has come to a value.");

  py::class_<HostDriver, Driver, std::shared_ptr<HostDriver>>(module, "HostDriver", "Shared memory and threads.")
      .def(py::init([](double spin_us, double link_bytes_per_us) {
             return std::make_shared<HostDriver>(HostDriver::Options{int64_t(spin_us * 1e3), link_bytes_per_us});
           }),
           py::arg("spin_us") = 0.0, py::arg("link_bytes_per_us") = 0.0,
           "How long waits poll before they sleep, and the rate of a modelled link (0: that of the memory).");

  py::class_<CudaDriver, Driver, std::shared_ptr<CudaDriver>>(module, "CudaDriver", "An NVIDIA device.")
      .def(py::init<int, std::string>(), py::arg("device"), py::arg("library") = "libcuda.so.1")
      .def(
          "set_compute_stream",
          [](CudaDriver& driver, uintptr_t stream) { driver.set_compute_stream(pointer(stream)); }, py::arg("stream"),
          "The stream that layers are given to.");

  py::class_<Scheduler>(module, "Scheduler", "Publishes the keys and values of one rank; see csrc/scheduler/scheduler.h.")
      .def(py::init([](std::shared_ptr<Driver> driver, int layers, int generations, double timeout, bool record) {
             return std::make_unique<Scheduler>(std::move(driver),
                                                Scheduler::Options{layers, generations, timeout, record});
           }),
           py::arg("driver"), py::arg("layers"), py::arg("generations") = 2, py::arg("timeout") = 30.0,
           py::arg("record") = false)
      .def(
          "add_outgoing",
          [](Scheduler& scheduler, const std::string& to, uintptr_t ready, uintptr_t credit) {
            return scheduler.add_outgoing(to, pointer<char>(ready), pointer<char>(credit));
          },
          py::arg("to"), py::arg("ready"), py::arg("credit"),
          "An edge to a rank that reads: counters of layer 0, `ready` in its memory, `credit` in this one's.")
      .def(
          "add_incoming",
          [](Scheduler& scheduler, const std::string& from, uintptr_t ready) {
            return scheduler.add_incoming(from, pointer<char>(ready));
          },
          py::arg("sender"), py::arg("ready"), "An edge from a rank that writes.")
      .def(
          "add_credit", [](Scheduler& scheduler, uintptr_t credit) { scheduler.add_credit(pointer<char>(credit)); },
          py::arg("credit"), "A counter, in the memory of a rank that writes here, of the layers that were read.")
      .def("begin", &begin, py::arg("tick"), py::arg("outgoing"), py::arg("incoming"), py::arg("last") = true,
           "Begin a stage's round: (edge, copies) of what is at work. A copy is (from, stride from layer to layer, "
           "to, stride, bytes). The `last` one of a tick gives the credits back.")
      .def("acquire", &Scheduler::acquire, Unlocked(), py::arg("layer"),
           "Before a layer's own pages are written: wait until older copies of them are over.")
      .def("claim", &Scheduler::claim, Unlocked(), py::arg("layer"),
           "Before `publish`, where somebody else makes the copies: wait until the pages there may be written.")
      .def("publish", &Scheduler::publish, Unlocked(), py::arg("layer"), "After they are written: send them.")
      .def("drain", &Scheduler::drain, Unlocked(), py::arg("layer"), "Wait until the copies of this tick are over.")
      .def("gate", &Scheduler::gate, Unlocked(), py::arg("layer"), "Before attention: wait for what it reads.")
      .def("attended", &Scheduler::attended, Unlocked(), py::arg("layer"), "After attention: give the credits back.")
      .def("cancel", &Scheduler::cancel, Unlocked(), py::arg("reason"),
           "End all waits; every later call raises a `WavecoreError` with the first reason.")
      .def("take_records", &records,
           "What happened since the last call: (publish, wait or attend, edge, layer, tick, begin, end, written).")
      .def_property_readonly("bytes_sent", &Scheduler::bytes_sent);
}

}  // namespace wavecore
