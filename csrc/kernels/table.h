// The table of one instruction set. Included by its translation unit, after its vector header.
#pragma once

#include "attention.h"
#include "attention_int8.h"
#include "int8_linear.h"
#include "linear.h"
#include "norm.h"
#include "page_write.h"
#include "pointwise.h"
#include "quantize.h"

#define WAVECORE_JOIN_(a, b) a##b
#define WAVECORE_JOIN(a, b) WAVECORE_JOIN_(a, b)
#define WAVECORE_TEXT_(a) #a
#define WAVECORE_TEXT(a) WAVECORE_TEXT_(a)

namespace wavecore {

const Kernels& WAVECORE_JOIN(WAVECORE_ISA, _kernels)() {
  namespace isa = WAVECORE_ISA;
  static constexpr Kernels table{WAVECORE_TEXT(WAVECORE_ISA),
                                 isa::layer_norm_modulate,
                                 isa::gate_residual,
                                 isa::rms_norm,
                                 isa::qkv_page_write,
                                 isa::rope_shift,
                                 isa::kMostQueries,
                                 isa::paged_attention,
                                 isa::paged_attention_scratch,
                                 isa::linear,
                                 isa::linear_items,
                                 isa::linear_scratch,
                                 isa::gelu,
                                 isa::renoise_step,
                                 isa::quantize,
                                 isa::layer_norm_modulate_quantize,
                                 isa::int8_linear,
                                 isa::int8_linear_items,
                                 isa::int8_linear_scratch,
                                 isa::quantize_key_pages,
                                 isa::paged_attention_int8,
                                 isa::paged_attention_int8_scratch};
  return table;
}

}  // namespace wavecore
