// What this processor can run, read once.
#pragma once

#include <string>
#include <vector>

namespace wavecore {

// Names of the instruction sets that both this build and this processor have, slowest first.
std::vector<std::string> supported_instruction_sets();

// What there is of matrix units (AMX): "usable", or why they are not.
const char* matrix_units();

}  // namespace wavecore
