// What this processor can run, read once.
#pragma once

#include <string>
#include <vector>

namespace wavecore {

// Names of the instruction sets that both this build and this processor have, slowest first.
std::vector<std::string> supported_instruction_sets();

}  // namespace wavecore
