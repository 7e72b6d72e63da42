// The table of one instruction set. Included by its translation unit, after its vector header.
#pragma once

#include "attention.h"
#include "norm.h"
#include "page_write.h"

#define WAVECORE_JOIN_(a, b) a##b
#define WAVECORE_JOIN(a, b) WAVECORE_JOIN_(a, b)
#define WAVECORE_TEXT_(a) #a
#define WAVECORE_TEXT(a) WAVECORE_TEXT_(a)

namespace wavecore {

const Kernels& WAVECORE_JOIN(WAVECORE_ISA, _kernels)() {
  namespace isa = WAVECORE_ISA;
  static constexpr Kernels table{
      WAVECORE_TEXT(WAVECORE_ISA), isa::layer_norm_modulate, isa::gate_residual,   isa::rms_norm,
      isa::qkv_page_write,         isa::rope_shift,          isa::paged_attention, isa::paged_attention_scratch};
  return table;
}

}  // namespace wavecore
