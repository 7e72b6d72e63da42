// Python bindings of the native module.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu_features.h"
#include "ops.h"
#include "parallel.h"
#if defined(__linux__)
#include "scheduler/bindings.h"
#endif
#include "tensor.h"

namespace py = pybind11;

PYBIND11_MODULE(_native, module) {
  using wavecore::Operations;
  module.doc() = "CPU kernels of wavecore";

  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const wavecore::ArgumentError& error) {
      py::object type = py::module_::import("wavecore.errors").attr("UsageError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });

  py::register_exception<wavecore::Mismatch>(module, "MismatchError");

  module.def("supported_instruction_sets", &wavecore::supported_instruction_sets,
             "Instruction sets that this build and this processor have, slowest first.");
  module.def("matrix_units", &wavecore::matrix_units, "Whether the matrix units (AMX) can be used, or why not.");
  module.def("thread_library", &wavecore::thread_library, "Path of the OpenMP runtime whose threads are used.");

  py::class_<Operations>(module, "Operations", "The kernels of one instruction set.")
      .def(py::init<const std::string&>(), py::arg("instruction_set"))
      .def_property_readonly("instruction_set", &Operations::instruction_set)
      .def("layer_norm_modulate", &Operations::layer_norm_modulate)
      .def("gate_residual", &Operations::gate_residual)
      .def("rms_norm", &Operations::rms_norm)
      .def("qkv_page_write", &Operations::qkv_page_write)
      .def("rope_shift", &Operations::rope_shift)
      .def("paged_attention", &Operations::paged_attention)
      .def("linear", &Operations::linear)
      .def("gelu", &Operations::gelu)
      .def("renoise_step", &Operations::renoise_step)
      .def("quantize_tokens", &Operations::quantize_tokens)
      .def("layer_norm_modulate_quantize", &Operations::layer_norm_modulate_quantize)
      .def("int8_linear", &Operations::int8_linear)
      .def("quantize_key_pages", &Operations::quantize_key_pages)
      .def("paged_attention_int8", &Operations::paged_attention_int8)
      .def("block_projections", &Operations::block_projections)
      .def("block_output", &Operations::block_output);

#if defined(__linux__)
  wavecore::bind_scheduler(module);
#endif
}
