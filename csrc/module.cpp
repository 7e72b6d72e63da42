// Python bindings of the native module.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu_features.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "CPU kernels of wavecore";
  module.def("supported_instruction_sets", &wavecore::supported_instruction_sets,
             "Instruction sets that this build and this processor have, slowest first.");
}
