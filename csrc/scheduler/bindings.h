// Python bindings of the stream scheduler.
#pragma once

#include <pybind11/pybind11.h>

namespace wavecore {

void bind_scheduler(pybind11::module_& module);

}  // namespace wavecore
